//go:build go1.26

package quorumlocktest

import "crypto/fips140"

// unenforced runs f where SHA-1 is allowed, even if GODEBUG=fips140=only forbids it: the
// digest names scripts, as in Redis, and secures nothing.
func unenforced(f func()) { fips140.WithoutEnforcement(f) }
