package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEverySkippedTestIsCountedWithItsReason(t *testing.T) {
	reasons := map[string]int{}
	require.NoError(t, count(strings.NewReader(`{"Action":"run","Package":"a","Test":"TestOne"}
{"Action":"output","Package":"a","Test":"TestOne","Output":"    one_test.go:12: make failover runs it\n"}
{"Action":"output","Package":"a","Test":"TestOne","Output":"--- SKIP: TestOne (0.00s)\n"}
{"Action":"output","Package":"b","Test":"TestOne/of many","Output":"    one_test.go:12: not the reason\n"}
{"Action":"output","Package":"b","Test":"TestOne/of many","Output":"    one_test.go:13: this server is never full\n"}
{"Action":"skip","Package":"a","Test":"TestOne","Elapsed":0}
{"Action":"skip","Package":"b","Test":"TestOne/of many","Elapsed":0}
{"Action":"output","Package":"b","Test":"TestTwo","Output":"    one_test.go:12: said, and passed\n"}
{"Action":"pass","Package":"b","Test":"TestTwo","Elapsed":0}
{"Action":"skip","Package":"c","Elapsed":0}
`), reasons))
	require.NoError(t, count(strings.NewReader(`{"Action":"output","Package":"a","Test":"TestThree","Output":"    three_test.go:1: make failover runs it\n"}
{"Action":"skip","Package":"a","Test":"TestThree"}
{"Action":"skip","Package":"a","Test":"TestFour"}
`), reasons))
	require.Equal(t, "4 tests were skipped: 2 (make failover runs it), 1 (no reason given), 1 (this server is never full)", summary(reasons))
	require.Equal(t, "no test was skipped", summary(nil))
}
