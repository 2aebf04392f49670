package certmagiclock_test

import (
	"log"

	"github.com/caddyserver/certmagic"

	"github.com/quorumlock/quorumlock"
	certmagiclock "github.com/quorumlock/quorumlock/adapters/certmagic"
)

// Several processes share the certificates in one directory.
func ExampleWrap() {
	var m *quorumlock.Manager // from New
	certmagic.Default.Storage = certmagiclock.Wrap(&certmagic.FileStorage{Path: "/srv/certificates"}, m)
	if err := certmagic.HTTPS([]string{"example.com"}, nil); err != nil {
		log.Fatal(err)
	}
}
