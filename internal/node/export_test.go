package node

import (
	"strconv"
	"time"
)

// HintMax is how many requests that messages have caused may wait.
const HintMax = hintMax

// NewForget returns the request with which a node drops old registers.
func NewForget(expires time.Duration) *Request {
	return &Request{
		Kind: Forget, Expires: expires, urgent: true, keys: []string{"p:" + registerTag},
		args: []string{"forget", micros(registerAge), strconv.Itoa(forgetMost)},
	}
}

// AcquireMax is the length of the lane of acquisitions.
const AcquireMax = acquireMax
