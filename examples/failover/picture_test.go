package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock"
)

func TestThePictureShowsWhoHeldTheLeaseAndWhenItWasLost(t *testing.T) {
	at := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	text := string(draw([]mark{
		{at: at(10), who: "alice", event: quorumlock.Acquired{Token: 1_000_007}},
		{at: at(500), text: "a < b & c"},
		{at: at(600), who: "alice", event: quorumlock.Renewed{}},
		{at: at(900), who: "alice", event: quorumlock.AtRisk{}},
		{at: at(1200), who: "alice", event: quorumlock.Lost{}},
		{at: at(1300), who: "bob", event: quorumlock.Acquired{Token: 2_000_009}},
	}))
	decoder := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"a &lt; b &amp; c", "token …01000007", "token …02000009", "reported 100ms before", "lost", `class="risk"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the picture lacks %q", want)
		}
	}
}
