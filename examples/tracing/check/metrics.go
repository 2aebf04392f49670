package main

import "context"

func metrics(context.Context, *settings) error { return nil }
