package node

import (
	"strconv"
	"time"
)

// NewForget returns the request with which a node drops old registers.
func NewForget(expires time.Duration) *Request {
	return &Request{
		Kind: Forget, Expires: expires, urgent: true, keys: []string{"p:" + registerTag},
		args: []string{"forget", micros(registerAge), strconv.Itoa(forgetMost)},
	}
}

// AcquireMax is the length of the lane of acquisitions.
const AcquireMax = acquireMax
