package master

import (
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// NoMasterSet stands for an empty name of a master set: an option without a name would be the
// option of a plain server.
const NoMasterSet = " "

// Name returns what chooses the master of a node: "sentinel", "slot", or "" for a node
// that is one server. name is how the node appears in logs and errors.
func Name(o *rueidis.ClientOption) (kind, name string) {
	switch _, slot := slotTag(o); {
	case o.Sentinel.MasterSet != "":
		return "sentinel", "sentinel:" + o.Sentinel.MasterSet
	case slot:
		return "slot", o.InitAddress[0]
	case len(o.InitAddress) > 0:
		return "", o.InitAddress[0]
	}
	return "", ""
}

// slotScheme begins the first address of a node that is the owner of a hash slot; the
// hash tag follows. If a port follows, slot is the name of a host.
const slotScheme = "slot:"

// SlotOption returns the option of a node that is the owner of a hash slot.
func SlotOption(tag string, seeds []string) rueidis.ClientOption {
	return rueidis.ClientOption{InitAddress: append([]string{slotScheme + tag}, seeds...)}
}

// SlotTag returns the hash tag of a node that SlotOption made; "" for another node.
func SlotTag(o *rueidis.ClientOption) string {
	tag, _ := slotTag(o)
	return tag
}

func slotTag(o *rueidis.ClientOption) (tag string, ok bool) {
	if len(o.InitAddress) == 0 {
		return "", false
	}
	tag, found := strings.CutPrefix(o.InitAddress[0], slotScheme)
	if _, err := strconv.ParseUint(tag, 10, 16); !found || err == nil {
		return "", false
	}
	return tag, true
}

// WholeTag reports whether a text is one hash tag with its braces.
func WholeTag(tag string) bool { return tag != "" && wire.HashTag(tag) == tag }

// Addresses returns the addresses in a node's option: its own, or the addresses of the servers that
// choose the master of its group.
func Addresses(o *rueidis.ClientOption) []string {
	if kind, _ := Name(o); kind == "slot" {
		return o.InitAddress[1:]
	}
	return o.InitAddress
}
