//go:build unix

package certmagiclock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/quorumlock/quorumlock"
	certmagiclock "github.com/quorumlock/quorumlock/adapters/certmagic"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// twoStorages returns the storages of two processes that share a directory.
func twoStorages(t *testing.T) (a, b *certmagiclock.Storage) {
	t.Helper()
	addrs := redistest.Addrs(redistest.Start(t, 3))
	dir := t.TempDir()
	open := func() *certmagiclock.Storage {
		m, err := quorumlock.New(t.Context(), quorumlock.Addrs(addrs...))
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, m.Close(context.Background())) })
		return certmagiclock.Wrap(&certmagic.FileStorage{Path: dir}, m)
	}
	return open(), open()
}

func TestTwoStoragesExcludeEachOther(t *testing.T) {
	a, b := twoStorages(t)
	ctx := t.Context()
	require.NoError(t, a.Lock(ctx, "n"))
	ok, err := b.TryLock(ctx, "n")
	require.NoError(t, err)
	require.False(t, ok)
	waiting, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.Lock(waiting, "n"), quorumlock.ErrHeld)
	require.ErrorIs(t, b.Unlock(ctx, "n"), certmagiclock.ErrNotLocked)
	require.ErrorIs(t, b.RenewLockLease(ctx, "n", time.Hour), certmagiclock.ErrNotLocked)
	require.NoError(t, a.RenewLockLease(ctx, "n", time.Hour))

	got := make(chan error, 1)
	go func() { got <- b.Lock(ctx, "n") }()
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, a.Unlock(cancelled, "n"))
	require.NoError(t, <-got)
	require.NoError(t, b.Unlock(ctx, "n"))
	ok, err = a.TryLock(ctx, "n")
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, a.Unlock(ctx, "n"))
	require.ErrorIs(t, a.Unlock(ctx, "n"), certmagiclock.ErrNotLocked)
	require.ErrorIs(t, a.Lock(ctx, strings.Repeat("x", 600)), quorumlock.ErrInvalid)
}

func TestCallersOfOneStorageExcludeEachOther(t *testing.T) {
	a, _ := twoStorages(t)
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if !assert.NoError(t, a.Lock(t.Context(), "n")) {
					return
				}
				assert.EqualValues(t, 1, inside.Add(1))
				inside.Add(-1)
				assert.NoError(t, a.Unlock(t.Context(), "n"))
			}
		})
	}
	wg.Wait()
}

func TestALostLockIsSaidByRenewAndUnlockAndTheNextCallersLockStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		m, err := quorumlock.New(t.Context(), cluster.Options())
		require.NoError(t, err)
		s := certmagiclock.Wrap(&certmagic.FileStorage{Path: t.TempDir()}, m)
		require.NoError(t, s.Lock(t.Context(), "n"))
		for _, n := range cluster.Nodes() {
			n.Cut()
		}
		time.Sleep(time.Minute)
		for _, n := range cluster.Nodes() {
			n.Heal()
		}
		require.ErrorIs(t, s.RenewLockLease(t.Context(), "n", time.Hour), quorumlock.ErrLost)
		require.NoError(t, s.Lock(t.Context(), "n"), "another caller")
		require.ErrorIs(t, s.RenewLockLease(t.Context(), "n", time.Hour), quorumlock.ErrLost)
		require.ErrorIs(t, s.Unlock(t.Context(), "n"), quorumlock.ErrLost)
		ok, err := s.TryLock(t.Context(), "n")
		require.NoError(t, err)
		require.False(t, ok, "the other caller has it still")
		require.NoError(t, s.RenewLockLease(t.Context(), "n", time.Hour))
		require.NoError(t, s.Unlock(t.Context(), "n"))
		require.NoError(t, m.Close(t.Context()))
	})
}

// issuer signs by itself and counts.
type issuer struct {
	key    *ecdsa.PrivateKey
	issued atomic.Int32
	inside atomic.Int32
	most   atomic.Int32 // the most callers inside at a time
}

func (i *issuer) IssuerKey() string { return "test" }

func (i *issuer) Issue(_ context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	i.issued.Add(1)
	i.most.Store(max(i.most.Load(), i.inside.Add(1)))
	defer i.inside.Add(-1)
	time.Sleep(200 * time.Millisecond)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(i.issued.Load())), DNSNames: csr.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, csr.PublicKey, i.key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// CertMagic itself, in two processes that need the same certificate at once.
func TestCertMagicObtainsACertificateOnce(t *testing.T) {
	a, b := twoStorages(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ca := &issuer{key: key}
	var wg sync.WaitGroup
	for _, storage := range []certmagic.Storage{a, b} {
		wg.Go(func() {
			var config *certmagic.Config
			cache := certmagic.NewCache(certmagic.CacheOptions{
				GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
				Logger:           zap.NewNop(),
			})
			defer cache.Stop()
			config = certmagic.New(cache, certmagic.Config{
				Storage: storage, Issuers: []certmagic.Issuer{ca}, Logger: zap.NewNop(),
				OCSP: certmagic.OCSPConfig{DisableStapling: true},
			})
			assert.NoError(t, config.ObtainCertSync(t.Context(), "example.com"))
			assert.True(t, storage.Exists(t.Context(), certmagic.StorageKeys.SiteCert("test", "example.com")))
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1, ca.issued.Load(), "certificates")
	assert.EqualValues(t, 1, ca.most.Load(), "at a time")
}
