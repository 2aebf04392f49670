// Package battery tries to break the library on real servers. Each row of its table is a fault, a measured figure, and
// the bar that the figure must reach.
//
// The package has only tests. "make test" runs most rows with small counts. "make
// battery" runs all with full counts, and prints the table.
package battery
