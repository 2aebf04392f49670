package master

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheOwnersOwnLineShowsAMoveOfTheSlot(t *testing.T) {
	const other, own = "b 127.0.0.1:2@3 master - 0 0 2 connected 8192-16383\n", "a 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-8191"
	for text, want := range map[string]bool{
		own + "\n" + other:                                    false,
		other + own + " [77->-b]\n":                           true,
		own + " [7->-b] [77->-b]\n" + other:                   true,
		own + " [7->-b] [777->-b] [77-<-b]\n" + other:         false,
		"b 127.0.0.1:2@3 master - 0 0 2 connected 1 [77->-a]": false,
	} {
		assert.Equal(t, want, movesAway(text, 77), text)
	}
}
