package main

import (
	_ "github.com/stretchr/testify/require"
	_ "go.uber.org/goleak"
)
