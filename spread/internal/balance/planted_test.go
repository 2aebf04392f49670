package balance

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each bug is one that a programmer could write. A scenario must find it, or else the scenario proves nothing.
func TestThePlantedBugsAreFound(t *testing.T) {
	rules := func(change func(*Rules)) options { return options{rules: change} }
	const never = 1000 * time.Hour
	for _, bug := range []struct {
		name, by string
		opts     options
	}{
		{"a name is released before its function has returned", "a fourth joins three", options{releaseEarly: true}},
		{"a holder consents whoever asks", "a seventh joins six", options{alwaysConsent: true}},
		{"a holder consents though nobody waits", "an asker is terminated", options{noWaiter: true}},
		{"an ask has no number", "a list is emptied and filled again", options{noNumber: true}},
		{"killed members are counted", "one of six is killed", options{ghosts: true}},
		{"a name is looked at again when its lease is lost", "a loss is ignored", options{endsAtLoss: true}},
		{"names are taken as soon as the presence is there", "Redis is away for longer than a TTL", rules(func(r *Rules) { r.Settle = 0 })},
		{"no sweep", "a foreign program releases a name", rules(func(r *Rules) { r.SweepEvery = 1 << 40 })},
		{"a member never has more than its share", "the lists differ", rules(func(r *Rules) { r.LookAgain = never })},
		{"dying leases are not looked at again", "one of three is killed, of 5 names", rules(func(r *Rules) { r.Dying = 0 })},
		{"a member that leaves is seen as any other change", "a name of a member that leaves runs again soon", rules(func(r *Rules) { r.Leaving = 0 })},
		{"no mark", "functions that take half a minute to return", rules(func(r *Rules) { r.MarkAfter = never })},
		{"a mark is told once", "a terminated member is cut off while its functions return", rules(func(r *Rules) { r.MarkEvery = never })},
		{"a deaf holder is asked for ever", "a holder is deaf", rules(func(r *Rules) { r.DeafAfter = 1 << 40 })},
		{"an asker does not leave", "a holder is deaf", rules(func(r *Rules) { r.Wait = never })},
		{"a free name with a dead waiter is left alone", "askers are killed, and then a holder", rules(func(r *Rules) { r.SecondLook = never })},
	} {
		t.Run(bug.name, func(t *testing.T) {
			all := scenarios()
			s := all[slices.IndexFunc(all, func(s scenario) bool { return s.name == bug.by })]
			c := s.complaint(2*s.seeds, bug.opts)
			assert.NotEmpty(t, c)
			t.Log(c)
		})
	}
}

// holder returns the only member of a group, which runs n names.
func holder(t *testing.T, n int) *Member {
	t.Helper()
	m := New("a#1", Default(longTTL), rand.New(rand.NewPCG(1, 1)))
	m.SetNames(0, list(n))
	m.Presence(0, true)
	var looks []Look
	for _, name := range m.Tick(2*time.Second, 1) {
		looks = append(looks, Look{Name: name, Free: true})
	}
	for _, c := range m.Looked(2*time.Second, looks) {
		require.Equal(t, Take, c.Kind)
		require.True(t, m.Granted(2*time.Second, c.Name))
	}
	require.Equal(t, n, m.Share())
	return m
}

// The text of an ask stays with the lease when its asker has gone.
func TestAnAskCountsForOneWait(t *testing.T) {
	m := holder(t, 4)
	now, ask := 10*time.Second, askText(0, 7, "b#2")
	assert.Equal(t, Ignore, m.Wanted(now, "n00000", 0, ask), "nobody waits")
	now += m.rules.Wait + 1
	assert.Equal(t, Ignore, m.Wanted(now, "n00000", 1, ask), "somebody else waits now")
	assert.Equal(t, Consent, m.Wanted(now, "n00000", 1, askText(0, 8, "b#2")), "it asks again")
	assert.Equal(t, 1, m.Given())
	assert.Equal(t, Ignore, m.Wanted(now, "n00000", 1, ask), "it has consented")
	assert.Equal(t, Remark, m.Wanted(now+time.Second, "n00000", 1, ask))
	assert.Equal(t, Ignore, m.Wanted(now+time.Second, "n00000", 1, Mark))
}

func TestAHolderKeepsAsManyAsTheAskerWillHave(t *testing.T) {
	m := holder(t, 4)
	for p, want := range map[int]Answer{4: Ignore, 3: Ignore, 2: Consent} {
		assert.Equal(t, want, m.Wanted(10*time.Second, "n00000", 1, askText(p, 7, "b#2")), p)
	}
	for _, text := range []string{"", "deploy", "spread1", "spread1 -1 7 b", "spread1 x 7 b", "spread2 0 7 b", Mark} {
		assert.Equal(t, Ignore, m.Wanted(10*time.Second, "n00001", 1, text), text)
	}
}

// looksAtHeld lets the member look once, with a#1 as the holder of every name.
func looksAtHeld(m *Member, now time.Duration) []Command {
	var looks []Look
	for _, name := range m.Tick(now, 2) {
		looks = append(looks, Look{Name: name, Holder: "a#1", TTL: longTTL})
	}
	return m.Looked(now, looks)
}

// A holder sees an equal text only once.
func TestTwoAsksDiffer(t *testing.T) {
	m := New("b#2", Default(longTTL), rand.New(rand.NewPCG(1, 1)))
	m.SetNames(0, list(4))
	m.Presence(0, true)
	texts, now := map[string]bool{}, 2*time.Second
	for range 1000 {
		now += time.Second
		for _, c := range looksAtHeld(m, now) {
			switch c.Kind {
			case Leave:
				m.Ended(now, c.Name)
			case Ask:
				assert.False(t, texts[c.Text], c.Text)
				texts[c.Text] = true
			}
		}
	}
	assert.Greater(t, len(texts), 10)
}

// A holder is deaf if it gives nothing in two waits in a row. A wait in which the asker itself was away shows nothing.
func TestAWaitInWhichTheAskerWasAwaySaysNothingAboutTheHolder(t *testing.T) {
	for _, away := range []bool{false, true} {
		m := New("b#2", Default(longTTL), rand.New(rand.NewPCG(1, 1)))
		m.SetNames(0, list(4))
		m.Presence(0, true)
		asks, deaf, now := 0, 0, 2*time.Second
		for range 100 {
			now += time.Second
			for _, c := range looksAtHeld(m, now) {
				switch c.Kind {
				case Ask:
					asks++
					if away {
						now += longTTL
						m.Presence(now, false)
						m.Presence(now, true)
						now += 2 * time.Second
					}
				case Leave:
					m.Ended(now, c.Name)
				case Deaf:
					deaf++
				}
			}
		}
		assert.Greater(t, asks, 4)
		assert.Equal(t, away, deaf == 0, "away %v: %d asks, deaf after %d", away, asks, deaf)
	}
}

// A marked name that has a waiter is looked at again: it becomes free, or its new holder has one name more.
func TestAMarkedNameIsLookedAtAgain(t *testing.T) {
	m := New("b#2", Default(longTTL), rand.New(rand.NewPCG(1, 1)))
	m.SetNames(0, list(1))
	m.Presence(0, true)
	now := 2 * time.Second
	require.Equal(t, list(1), m.Tick(now, 2))
	require.Empty(t, m.Looked(now, []Look{{Name: list(1)[0], Holder: "a#1", TTL: longTTL, Marked: true, Waiters: 1}}))
	assert.Contains(t, m.again, list(1)[0])
	assert.LessOrEqual(t, m.again[list(1)[0]], now+m.rules.MarkEvery)
}

// Or a member that waits for names of a master that is down looks at no others.
func TestAWaitForANameThatCannotBeLookedAtEnds(t *testing.T) {
	m := New("b#2", Default(longTTL), rand.New(rand.NewPCG(1, 1)))
	m.SetNames(0, list(8))
	m.Presence(0, true)
	now, asked := 2*time.Second, 0
	for ; asked == 0; now += time.Second {
		for _, c := range looksAtHeld(m, now) {
			require.Equal(t, Ask, c.Kind)
			asked++
		}
	}
	left := m.Looked(now, nil, m.Tick(now, 2)...)
	assert.Len(t, left, asked)
	for _, c := range left {
		assert.Equal(t, Leave, c.Kind)
		assert.False(t, m.Waits(c.Name))
		m.Ended(now, c.Name)
	}
	assert.Zero(t, m.Share())
	for range 30 {
		now += time.Second
		assert.Empty(t, m.Looked(now, nil, m.Tick(now, 2)...), "who holds it is not known")
	}
}
