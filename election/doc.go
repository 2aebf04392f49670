// Package election elects a leader among processes, with the callbacks of Kubernetes' leader election: for the start
// and the end of the work, and for a change of the leader. It is [quorumlock.Manager.Lead] and
// [quorumlock.Manager.Observe] together, and adds nothing to what they promise.
//
// # Preference and health
//
// With [Config.Preference] or [Config.Health], the better candidate leads: the one in the region of the data, the
// one with a warm cache, the one that is healthy. At most one leads at any time, as without them: the
// leader sees [Elector.Yielding], returns, and its lease is released. A leader that continues keeps
// its lease.
//
// A release hands a lease to the candidate that has waited longest, and not to the best one. So only one candidate
// waits for the name: the holder of a second lease, NAME/next. The others wait for that one, and its holder leaves
// when a better candidate asks. One yield then makes the best candidate the leader.
//
// A candidate asks by [quorumlock.Manager.AskRelease], and says the smallest value of its Preference in the last
// minute. The leader compares the largest value of its own last minute: a value that swings faster moves no leader.
// It yields when the asker is better by Margin, waits for the name, and the leader has led for MinReign. That time
// is doubled for each reign of any candidate that was shorter than half of MinReign, three times at most, until
// there was none for 16 MinReign. A candidate asks when it has been up, and has not led, for MinReign.
//
//	state     event                                                        action
//	idle      healthy, and not cooling off or no leader for 2 TTL          wait for NAME/next: queued
//	queued    each half of a TTL                                           ask the holder of NAME/next
//	queued    no leader for 3 TTL                                          wait for NAME as well
//	queued    NAME/next is granted                                         wait for NAME: next
//	queued    unhealthy                                                    leave: idle
//	next      unhealthy, or a better candidate asks                        leave: idle
//	next      each minute                                                  ask the leader
//	next      NAME is granted                                              release NAME/next: leading
//	leading   a better candidate has asked within a minute and 2 TTL, or unhealthy  close Yielding: yielding
//	yielding  Lead returns                                                 release NAME: idle
//
// What follows, for an hour, R being MinReign: Preference causes at most one yield in each R, and Health at most one
// of a candidate in 6 HealthEvery, unless LeadAnyway made it lead unhealthy. A favourite that crashes after each win gets the lead after R, 2 R, 4 R, then each
// 8 R. After 20 R and 2 minutes without changes and faults, no candidate is better than the leader by Margin. Candidates that
// run without Preference and Health, or an earlier version, may take part: they wait for NAME itself, and neither
// ask nor yield, so one of them may follow a leader that yields.
//
// All candidates should have the same settings. NAME/next is an ordinary lease: nothing else should use that name.
package election
