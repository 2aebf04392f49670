// Package balance decides what a member of a group takes, asks for and gives away, so that N names are spread evenly
// over M members. It has no clock, no I/O and no goroutine: [Member] is a state machine. Its methods are the events and
// return the commands; the caller passes in instants and chance. Package spread runs it on real leases, and the
// simulation in the tests on a model of them.
//
// # The method
//
// No member leads and no one computes a plan. A member counts the members, looks up the holder of each name, takes free
// names until it has its share, and asks the holder that has most for one of its names. The holder gives it away only
// if it still has at least two more than the asker said it had. So each move lowers the sum of the squares of the
// numbers of names, whatever the members believe about how many they are, and the moves end. This is the work stealing
// of Blumofe and Leiserson ("Scheduling multithreaded computations by work stealing", JACM 1999) with the condition of
// a load balancing game on the victim's side (Berenbrink et al., "Distributed selfish load balancing", SIAM J. Comput.
// 2007).
package balance
