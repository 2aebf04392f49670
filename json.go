package quorumlock

import (
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// This file has the JSON of what users log: events, answers and errors. There is one convention. Keys are the
// names of the fields in snake case. Durations are numbers of milliseconds with their fractions, and their keys end
// with "_ms". Times are in RFC 3339, in UTC. Errors are texts, "" for none, and the key of Err is "error"; an
// error of this package has its own text there. A LostReason is one word. A zero time, a zero Holder, a TTL that does
// not end, and the zero value of a field with the tag omitzero are left out. The keys are stable; new ones may be added.

// appendObject appends the exported fields of a struct, given by a pointer, to a JSON object.
func appendObject(b []byte, of reflect.Value, isError bool) ([]byte, error) {
	for i := range of.NumField() {
		field := of.Type().Field(i)
		if field.Anonymous {
			var err error
			if b, err = appendObject(b, of.Field(i), isError); err != nil {
				return nil, err
			}
			continue
		}
		if !field.IsExported() || isError && field.Name == "Err" || field.Tag.Get("json") == ",omitzero" && of.Field(i).IsZero() {
			continue
		}
		key, value := snake(strings.TrimSuffix(field.Name, "For")), of.Field(i).Interface()
		switch v := value.(type) {
		case time.Duration:
			if key == "ttl" && v < 0 {
				continue
			}
			key, value = key+"_ms", milliseconds(v)
		case time.Time:
			value = v.UTC()
		case LostReason:
			value = v.slug()
		case nil: // the zero error
			value = ""
		case error:
			value = v.Error()
		}
		if field.Name == "Err" {
			key = "error"
		}
		if zero, ok := of.Field(i).Interface().(interface{ IsZero() bool }); ok && zero.IsZero() || value == (Holder{}) {
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, ',', '"'), key...), '"', ':')
		b = append(b, text...)
	}
	return b, nil
}

// object returns the JSON of a struct, given by a pointer.
func object(v any) ([]byte, error) {
	var b []byte
	err, isError := v.(error)
	if isError {
		text, _ := json.Marshal(err.Error()) // a string has no error
		b = append([]byte(`,"error":`), text...)
	}
	b, failure := appendObject(b, reflect.ValueOf(v).Elem(), isError)
	if failure != nil {
		return nil, failure
	}
	if len(b) == 0 {
		return []byte("{}"), nil
	}
	b[0] = '{'
	return append(b, '}'), nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// snake returns a name in snake case.
func snake(name string) string {
	var b strings.Builder
	lower := false
	for _, r := range name {
		if unicode.IsUpper(r) && lower {
			b.WriteByte('_')
		}
		lower = !unicode.IsUpper(r)
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// MarshalJSON returns the fields for a log, with keys in snake case, durations as milliseconds, times in RFC 3339
// and errors as texts. It is the same for all events, answers and errors of this package.
func (e Acquired) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e Renewed) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e AtRisk) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e Lost) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (w Wanted) MarshalJSON() ([]byte, error) { return object(&w) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e Released) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e NodeChanged) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log or a health endpoint, see Acquired.MarshalJSON. master, holder, readers,
// ttl_ms and fence are left out where there is none. The keys are stable; new ones may be added.
func (s NodeStatus) MarshalJSON() ([]byte, error) { return object(&s) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (s LeaseStatus) MarshalJSON() ([]byte, error) { return object(&s) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (s Status) MarshalJSON() ([]byte, error) { return object(&s) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (r Revocation) MarshalJSON() ([]byte, error) { return object(&r) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e HeldError) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e QuorumError) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e NodeError) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e LostError) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e InvalidError) MarshalJSON() ([]byte, error) { return object(&e) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (e FuncError) MarshalJSON() ([]byte, error) { return object(&e) }

// LogValue has log/slog write the text of the error, and not its JSON.
func (e *HeldError) LogValue() slog.Value { return slog.StringValue(e.Error()) }

// LogValue has log/slog write the text of the error, and not its JSON.
func (e *QuorumError) LogValue() slog.Value { return slog.StringValue(e.Error()) }

// LogValue has log/slog write the text of the error, and not its JSON.
func (e *NodeError) LogValue() slog.Value { return slog.StringValue(e.Error()) }

// LogValue has log/slog write the text of the error, and not its JSON.
func (e *LostError) LogValue() slog.Value { return slog.StringValue(e.Error()) }

// LogValue has log/slog write the text of the error, and not its JSON.
func (e *InvalidError) LogValue() slog.Value { return slog.StringValue(e.Error()) }

// LogValue has log/slog write the text of the error, and not its JSON.
func (e *FuncError) LogValue() slog.Value { return slog.StringValue(e.Error()) }

// MarshalJSON returns the fields for a log, see Acquired.MarshalJSON.
func (w Waiter) MarshalJSON() ([]byte, error) { return object(&w) }

// MarshalJSON returns the holder as the fields' tags say, with the time in UTC.
func (h Holder) MarshalJSON() ([]byte, error) {
	type plain Holder
	h.Since = h.Since.UTC()
	return json.Marshal(plain(h))
}
