package quorumlock_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log/slog"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
)

var (
	instant = time.Date(2026, 11, 26, 9, 30, 0, 250_000_000, time.FixedZone("", 3600))
	someone = quorumlock.Holder{Label: "web-1", Owner: "ab", Since: instant}
	broken  = &quorumlock.NodeError{Node: 1, Addr: "b:6379", Err: errors.New("key is missing")}
	lost    = quorumlock.Lost{
		Name: "job", Token: 7, Reason: quorumlock.LostMissing, At: instant, ValidUntil: instant, AnotherFrom: instant, Nodes: []*quorumlock.NodeError{broken},
	}
)

// asJSON has a value of each exported struct with data, and its JSON.
var asJSON = map[string]struct {
	value any
	want  string
}{
	"Acquired": {quorumlock.Acquired{Name: "job", Token: 7, ValidUntil: instant, Margin: 1}, `{"name":"job","token":7,"valid_until":"2026-11-26T08:30:00.25Z","margin":1,"shared":false}`},
	"Renewed":  {quorumlock.Renewed{Name: "job", Token: 7, ValidUntil: instant, Confirmed: 3}, `{"name":"job","token":7,"valid_until":"2026-11-26T08:30:00.25Z","margin":0,"confirmed":3}`},
	"AtRisk": {
		quorumlock.AtRisk{Name: "job", Token: 7, Remaining: 1500 * time.Microsecond, Nodes: []*quorumlock.NodeError{broken}},
		`{"name":"job","token":7,"remaining_ms":1.5,"margin":0,"confirmed":0,"nodes":[{"error":"node 1 (b:6379): key is missing","node":1,"addr":"b:6379","misconfigured":false}]}`,
	},
	"Lost": {
		lost, `{"name":"job","token":7,"reason":"missing","at":"2026-11-26T08:30:00.25Z","valid_until":"2026-11-26T08:30:00.25Z","another_from":"2026-11-26T08:30:00.25Z",` +
			`"nodes":[{"error":"node 1 (b:6379): key is missing","node":1,"addr":"b:6379","misconfigured":false}]}`,
	},
	"Wanted":   {quorumlock.Wanted{Waiters: 2, Asked: true, By: "ops", Reason: "deploy"}, `{"waiters":2,"asked":true,"by":"ops","reason":"deploy"}`},
	"Released": {quorumlock.Released{Name: "job", Token: 7}, `{"name":"job","token":7}`},
	"NodeChanged": {
		quorumlock.NodeChanged{Node: 1, Addr: "b:6379", Err: errors.New("down"), QuarantinedFor: time.Second},
		`{"node":1,"addr":"b:6379","error":"down","quarantined_ms":1000,"warning":"","master":""}`,
	},
	"NodeStatus": {
		quorumlock.NodeStatus{Addr: "b:6379", Err: errors.New("down")},
		`{"addr":"b:6379","version":"","voting":false,"quarantined_ms":0,"error":"down","warning":"","round_trip_ms":0,"clock_offset_ms":0}`,
	},
	"LeaseStatus": {
		quorumlock.LeaseStatus{
			Name: "job", Token: 7, Slot: -1, Since: instant, TTL: 10 * time.Second, Remaining: 1500 * time.Microsecond, AtRisk: true,
			Wanted: quorumlock.Wanted{Waiters: 1}, Nodes: []*quorumlock.NodeError{broken},
		},
		`{"name":"job","token":7,"slot":-1,"shared":false,"since":"2026-11-26T08:30:00.25Z","ttl_ms":10000,"remaining_ms":1.5,"at_risk":true,"margin":0,` +
			`"wanted":{"waiters":1,"asked":false,"by":"","reason":""},` +
			`"nodes":[{"error":"node 1 (b:6379): key is missing","node":1,"addr":"b:6379","misconfigured":false}]}`,
	},
	"Holder": {someone, `{"label":"web-1","owner":"ab","trace_parent":"","since":"2026-11-26T08:30:00.25Z"}`},
	"Status": {
		quorumlock.Status{Name: "job", Known: true, Held: true, Holder: someone, Votes: 2, Token: 7, TTL: 2 * time.Second, Until: instant, AsOf: instant, Err: errors.New("too few")},
		`{"name":"job","known":true,"held":true,"holder":{"label":"web-1","owner":"ab","trace_parent":"","since":"2026-11-26T08:30:00.25Z"},"votes":2,"readers":0,"holders":null,` +
			`"token":7,"ttl_ms":2000,"until":"2026-11-26T08:30:00.25Z","fence":0,"waiters":0,"as_of":"2026-11-26T08:30:00.25Z","error":"too few","nodes":null}`,
	},
	"Waiter": {
		quorumlock.Waiter{Process: "0123456789abcdef", Since: instant, Permits: 4},
		`{"process":"0123456789abcdef","own":false,"since":"2026-11-26T08:30:00.25Z","shared":false,"permits":4}`,
	},
	"Revocation": {quorumlock.Revocation{Until: instant, Marked: 2}, `{"until":"2026-11-26T08:30:00.25Z","marked":2}`},
	"HeldError": {
		&quorumlock.HeldError{Name: "job", RetryAfter: 1500 * time.Millisecond},
		`{"error":"quorumlock: \"job\" is reserved for a waiter; the reservation expires in 1.5s","name":"job","readers":0,"retry_after_ms":1500,"self":false}`,
	},
	"QuorumError": {
		&quorumlock.QuorumError{Op: "renew", Name: "job", Need: 2, Got: 1, Nodes: []*quorumlock.NodeError{broken}},
		`{"error":"quorumlock: renew \"job\": confirmed by 1 node, need 2: node 1 (b:6379): key is missing","op":"renew","name":"job","need":2,"got":1,` +
			`"nodes":[{"error":"node 1 (b:6379): key is missing","node":1,"addr":"b:6379","misconfigured":false}],"retry_after_ms":0}`,
	},
	"NodeError": {broken, `{"error":"node 1 (b:6379): key is missing","node":1,"addr":"b:6379","misconfigured":false}`},
	"LostError": {
		&quorumlock.LostError{Lost: quorumlock.Lost{Name: "job", Reason: quorumlock.LostMaxHold, At: instant}},
		`{"error":"quorumlock: lease \"job\" (token 0) lost: held for the maximum time of WithMaxHold","name":"job","token":0,"reason":"max_hold","at":"2026-11-26T08:30:00.25Z","nodes":null}`,
	},
	"InvalidError": {
		&quorumlock.InvalidError{What: "TTL", Value: "0s", Bound: "is too short", Fix: "choose more"},
		`{"error":"quorumlock: TTL 0s: is too short; choose more","what":"TTL","value":"0s","bound":"is too short","fix":"choose more"}`,
	},
	"FuncError": {&quorumlock.FuncError{Err: quorumlock.ErrHeld}, `{"error":"quorumlock: lease held by another holder"}`},
}

// withoutData are the exported structs that have no exported field.
var withoutData = []string{"Kind", "Lease", "Leases", "Manager", "Subscription"}

func TestEveryExportedStructHasOneKindOfJSON(t *testing.T) {
	all := exportedStructs(t)
	assert.ElementsMatch(t, slices.Sorted(maps.Keys(all)), append(slices.Sorted(maps.Keys(asJSON)), withoutData...))
	for _, name := range withoutData {
		assert.Zero(t, all[name], "%s has exported fields", name)
	}
	key := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for name, c := range asJSON {
		text, err := json.Marshal(c.value)
		require.NoError(t, err, name)
		assert.JSONEq(t, c.want, string(text), name)
		assert.Equal(t, c.want, string(text), "%s, in the order of the fields", name)
		value := reflect.Indirect(reflect.ValueOf(c.value)).Interface()
		again, err := json.Marshal(value)
		require.NoError(t, err)
		assert.Equal(t, string(text), string(again), "%s, as a value", name)
		var keys map[string]any
		require.NoError(t, json.Unmarshal(text, &keys), name)
		for k := range keys {
			assert.Regexp(t, key, k, name)
		}
	}
}

// A line of a JSON log has the text of an error, even where the error is not wrapped.
func TestErrorsAreTextsInALog(t *testing.T) {
	for name, c := range asJSON {
		err, ok := c.value.(error)
		if !ok {
			continue
		}
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("failed", "error", err)
		var line map[string]any
		require.NoError(t, json.Unmarshal(log.Bytes(), &line))
		assert.Equal(t, err.Error(), line["error"], name)
	}
}

// exportedStructs returns the exported structs of the package, and how many exported fields each has.
func exportedStructs(t *testing.T) map[string]int {
	t.Helper()
	found := map[string]int{}
	production := func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }
	packages, err := parser.ParseDir(token.NewFileSet(), ".", production, 0) //nolint:staticcheck // the types are not needed
	require.NoError(t, err)
	for _, file := range packages["quorumlock"].Files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				found[spec.Name.Name] = 0
				for _, field := range s.Fields.List {
					for _, name := range field.Names {
						if name.IsExported() {
							found[spec.Name.Name]++
						}
					}
				}
			}
			return true
		})
	}
	return found
}

func TestEachReasonOfALossIsOneWordInJSON(t *testing.T) {
	for reason, word := range map[quorumlock.LostReason]string{
		quorumlock.LostExpired: "expired", quorumlock.LostRevoked: "revoked", quorumlock.LostSuspended: "suspended",
		quorumlock.LostMaxHold: "max_hold", quorumlock.LostTaken: "taken", quorumlock.LostMissing: "missing", "": "unknown",
	} {
		text, err := json.Marshal(quorumlock.Lost{Reason: reason})
		require.NoError(t, err)
		assert.Contains(t, string(text), `"reason":"`+word+`"`)
	}
}
