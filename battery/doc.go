// Package battery tries to break the library on real servers: each row of its
// table is a fault, a figure, and the bar that the figure has to reach.
//
// It is all tests. "make test" runs every row with small counts, "make
// battery" with the full ones, and prints the table.
package battery
