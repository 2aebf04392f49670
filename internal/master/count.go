package master

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// count counts the votes for each term. faults has why a voter has no vote, or belongs to another group than most
// voters. A voter that is listed twice has one vote.
func (v *voters) count(answers []vote) (votes map[Term]int, faults []error) {
	votes, faults = map[Term]int{}, make([]error, len(answers))
	seen := map[string]int{}
	for i, a := range answers {
		if faults[i] = a.err; a.err != nil {
			continue
		}
		if j, again := seen[a.id]; again && a.id != "" {
			faults[i] = &doubleError{wire.ConfigError{
				Problem: fmt.Sprintf("%s and %s lead to the same one of the %s (id %s)", v.addrs[j], v.addrs[i], v.who, a.id),
				Fix:     "list each of them once, under one address", List: true,
			}}
			continue
		}
		seen[a.id] = i
		votes[a.term]++
	}
	v.findStrangers(answers, faults)
	return votes, faults
}

// findStrangers adds the faults of voters that are not of the group to which most belong. The
// terms that they name do not matter: the terms of one group may differ during a failover.
func (v *voters) findStrangers(answers []vote, faults []error) {
	best, fewest := 0, len(answers)
	for i := range answers {
		strangers := 0
		for j := range answers {
			if faults[i] == nil && faults[j] == nil && i != j && answers[i].strange(answers[j].view) {
				strangers++
			}
		}
		if faults[i] == nil && strangers < fewest {
			best, fewest = i, strangers
		}
	}
	for i, a := range answers {
		if faults[i] == nil && i != best && a.strange(answers[best].view) {
			faults[i] = &wire.ConfigError{
				Problem: fmt.Sprintf("the %s at %s and %s are of two groups: neither knows the other", v.who, v.addrs[best], v.addrs[i]),
				Fix:     "list the members of one group; a second group is another node", List: true,
			}
		}
	}
}

// doubleError is the ConfigError of a voter that is listed twice.
type doubleError struct{ wire.ConfigError }

// Unwrap returns the ConfigError.
func (e *doubleError) Unwrap() error { return &e.ConfigError }

func isDouble(err error) bool {
	var double *doubleError
	return errors.As(err, &double)
}

func configOf(err error) (config *wire.ConfigError, ok bool) {
	ok = errors.As(err, &config)
	return config, ok
}

// describe writes which masters were named, and how often.
func describe(votes map[Term]int) string {
	var texts []string
	for term, n := range votes {
		texts = append(texts, fmt.Sprintf("%d name %s (epoch %d)", n, term.Addr, term.Epoch))
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

// failed returns the error for a question that no majority has answered with one voice. If no majority is left without
// the voters that must be fixed, it returns a ConfigError.
func (v *voters) failed(answers []vote) error {
	votes, faults := v.count(answers)
	var first *wire.ConfigError
	var texts []string
	configs := 0
	const fix = "; if this lasts, check them"
	for _, err := range faults {
		if config, ok := configOf(err); ok {
			if configs++; first == nil {
				first = config
			}
		}
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	switch {
	case len(v.addrs)-configs <= len(v.addrs)/2:
		return first
	case len(texts) == 0:
		return fmt.Errorf("the %d %s name different masters: %s%s", len(v.addrs), v.who, describe(votes), fix)
	default:
		return fmt.Errorf("no majority of the %d %s names a master: %s%s", len(v.addrs), v.who, strings.Join(texts, "; "), fix)
	}
}
