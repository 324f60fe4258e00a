// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
)

// recovery is the reaction of a watch to its end.
type recovery int

const (
	// resume opens the next stream at the last safe version.
	resume recovery = iota
	// listAgain opens the next stream without a version.
	listAgain
	// giveUp ends the informer with the error.
	giveUp
)

const (
	reasonDraining        = "DRAINING"
	reasonVersionTooLarge = "RESOURCE_VERSION_TOO_LARGE"
)

// recoveryOf returns the reaction to an error, as the contract's comment of Watch has it. hasSynced: the resource was served
// before. hasRetried: the watch has been rejected for its credentials once already.
func recoveryOf(e *Error, hasSynced, hasRetried bool) recovery {
	switch e.Code {
	case codes.OK, codes.Unavailable, codes.Internal, codes.Unknown, codes.Aborted, codes.Canceled, codes.DeadlineExceeded,
		codes.ResourceExhausted:
		return resume
	case codes.OutOfRange:
		// Whatever the reason: a proxy may have removed it, and a newer server has others.
		return listAgain
	case codes.Unauthenticated:
		if !hasRetried {
			return resume
		}
	case codes.NotFound:
		if hasSynced {
			return resume
		}
	}
	return giveUp
}

// isAnswer returns true for a status of the server itself: those of libraries, proxies and the network have no reason, and not this
// code.
func isAnswer(e *Error) bool { return e.Reason != "" || e.Code == codes.OutOfRange }

// backoffDelays are random delays below a limit that doubles.
type backoffDelays struct {
	min, max time.Duration
	limit    time.Duration
}

func (b *backoffDelays) next() time.Duration {
	b.limit = min(max(2*b.limit, b.min), b.max)
	return rand.N(b.limit) + 1
}

func (b *backoffDelays) reset() { b.limit = 0 }
