package testkit

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// waiting is how many parallel tests run at a time in a package whose tests wait for
// servers most of the time.
const waiting = "6"

// RunWaiting is for TestMain of such a package; -parallel on the command line overrides waiting. It fails if a test has
// left a goroutine behind.
func RunWaiting(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", waiting); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
