//go:build unix

package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// A CA signs certificates for the duration of a test.
type CA struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA creates a certificate authority that no client or server trusts yet.
func NewCA(tb testing.TB) *CA {
	tb.Helper()
	ca := &CA{tb: tb}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "redistest CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, key := ca.sign(template)
	var err error
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		tb.Fatalf("redistest: CA: %v", err)
	}
	ca.key = key
	return ca
}

// PEM returns the certificate of the authority, for a file.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// Certificate issues a certificate with a key of its own, for a server with
// these host names or IP addresses, or for a client.
func (ca *CA) Certificate(names ...string) tls.Certificate {
	ca.tb.Helper()
	template := &x509.Certificate{
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, key := ca.sign(template)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// ClientConfig returns the configuration of a client that trusts only this CA, and that
// presents certificates to a server that asks for one.
func (ca *CA) ClientConfig(certificates ...tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return &tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12}
}

// sign issues a certificate. If the CA has no certificate yet, sign issues the CA's own.
func (ca *CA) sign(template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	ca.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.tb.Fatalf("redistest: certificate: %v", err)
	}
	// A day of margin: a server may run on a clock that was stepped.
	template.NotBefore, template.NotAfter = time.Now().AddDate(0, 0, -1), time.Now().AddDate(0, 0, 1)
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		ca.tb.Fatalf("redistest: certificate: %v", err)
	}
	parent, signer := ca.cert, ca.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		ca.tb.Fatalf("redistest: certificate: %v", err)
	}
	return der, key
}

// TLS makes servers also listen for TLS, at TLSAddr. Addr, and so Do, stay unencrypted.
type TLS struct {
	CA    *CA      // signs a certificate for each server
	Names []string // of that certificate; 127.0.0.1 if there are none
	// Clients, if not nil, signs the client certificates. The server then rejects a
	// client without one.
	Clients *CA
}

// arguments writes the certificates and the key of a server into dir. It returns the
// arguments that name them.
func (t *TLS) arguments(dir string) ([]string, error) {
	names := t.Names
	if len(names) == 0 {
		names = []string{loopback}
	}
	cert, key, trusted := filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"), filepath.Join(dir, "clients.crt")
	if err := WritePEM(t.CA.Certificate(names...), cert, key); err != nil {
		return nil, err
	}
	clients, auth := t.CA, "no"
	if t.Clients != nil {
		clients, auth = t.Clients, "yes"
	}
	err := os.WriteFile(trusted, clients.PEM(), 0o600)
	return []string{"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", trusted, "--tls-auth-clients", auth}, err
}

// WritePEM writes a certificate and its key into files.
func WritePEM(certificate tls.Certificate, cert, key string) error {
	der, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600),
	)
}

// TLSAddr returns the host and port at which a server started with Options.TLS
// listens for TLS. It stays the same over restarts.
func (s *Server) TLSAddr() string {
	s.tb.Helper()
	if s.tlsPort == 0 {
		s.tb.Fatalf("redistest: %s has no address for TLS: it was not started with Options.TLS", s.Addr())
	}
	return net.JoinHostPort(loopback, strconv.Itoa(s.tlsPort))
}
