//go:build !unix

// Benchmarks measures quorumlock against other lock libraries. It needs Unix.
package main

func main() { panic("the benchmarks need Unix") }
