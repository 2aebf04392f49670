package otel

import "go.opentelemetry.io/otel/attribute"

// Label has the attributes of a lease on metrics.
type Label struct {
	Name string // "" for none
	Mode Mode
}

// Mode is a kind of lease.
type Mode uint8

// The modes. Spans and metrics of exclusive leases have no attribute for it.
const (
	Exclusive Mode = iota
	Shared
	Permit
)

// Attributes returns the attribute of the mode, none for Exclusive.
func (m Mode) Attributes() []attribute.KeyValue {
	if m == Exclusive {
		return nil
	}
	return []attribute.KeyValue{attrMode.String([...]string{"exclusive", "shared", "permit"}[m])}
}
