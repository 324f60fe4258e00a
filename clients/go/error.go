// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	codepb "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrStopped is returned by waits on an informer that has been stopped.
var ErrStopped = errors.New("informer has been stopped")

// Error is the failure of a call: the status of the server, or of the connection to it.
type Error struct {
	// Code is the gRPC code.
	Code codes.Code
	// Reason is the server's, for example "RESOURCE_NOT_FOUND"; empty if the status is not the server's, but that of the gRPC
	// library, a proxy or the network.
	Reason string
	// Message is one line.
	Message string
	// Metadata belongs to the reason.
	Metadata map[string]string
	// RetryAfter is the delay that the server requests before the next attempt; 0 if it requests none.
	RetryAfter time.Duration

	cause error
}

// HandlerError reports that an event handler or index function panicked. The informer continues with the next call.
type HandlerError struct {
	// Callback names the function, for example "OnAdd".
	Callback string
	// Object is the key of the object.
	Object string
	// Value is the value of the panic, or the error of an index function.
	Value any
	// Stack is the stack of the panic; empty for an error.
	Stack []byte
}

// LagError reports that an event handler lags behind the store. It is reported once, until the handler has caught up.
type LagError struct {
	// Waiting is the number of notifications that wait for the handler, without those of the initial list.
	Waiting int
}

// DecodeError reports a body that could not be decoded into the type parameter. The object is in the store, without a body.
type DecodeError struct {
	// Object is the key of the object.
	Object string
	// Err is the reason.
	Err error
}

// InterruptedError reports that a watch ended, and that the informer opens the next one after a delay.
type InterruptedError struct {
	// Resource is the resource of the informer.
	Resource string
	// Err is the reason.
	Err error
	// RetryIn is the delay.
	RetryIn time.Duration
}

// errorDomain is the domain of the reasons of informerd.
const errorDomain = "informerd"

// maxRetryAfter is the longest delay that a server may request.
const maxRetryAfter = 60 * time.Second

// Error returns the message, the code and the reason.
func (e *Error) Error() string {
	where := codepb.Code(e.Code).String()
	if e.Reason != "" {
		where += " / " + e.Reason
	}
	if e.Message == "" {
		return where
	}
	return fmt.Sprintf("%s (%s)", e.Message, where)
}

// Unwrap returns the error of the context, if it was the context that ended the call.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus makes [status.FromError] and [status.Code] work.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

func (e *HandlerError) Error() string {
	return fmt.Sprintf("%s failed on object %q: %v", e.Callback, e.Object, e.Value)
}

func (e *LagError) Error() string {
	return fmt.Sprintf("event handler lags: %d notifications wait for it", e.Waiting)
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("cannot decode the body of object %q: %v", e.Object, e.Err)
}

// Unwrap returns the reason.
func (e *DecodeError) Unwrap() error { return e.Err }

func (e *InterruptedError) Error() string {
	return fmt.Sprintf("watch of %q interrupted: %v; retry in %v", e.Resource, e.Err, e.RetryIn.Round(time.Millisecond))
}

// Unwrap returns the reason.
func (e *InterruptedError) Unwrap() error { return e.Err }

// errorOf converts the error of a gRPC call; ctx is the context of its caller.
func errorOf(ctx context.Context, err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	converted := errorOfStatus(status.Convert(err))
	if ctx.Err() != nil {
		converted.cause = context.Cause(ctx)
	}
	return converted
}

func errorOfProto(s *statuspb.Status) *Error { return errorOfStatus(status.FromProto(s)) }

func errorOfStatus(s *status.Status) *Error {
	e := &Error{Code: s.Code(), Message: oneLine(s.Message())}
	for _, detail := range s.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == errorDomain {
				e.Reason, e.Metadata = detail.GetReason(), detail.GetMetadata()
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = min(max(detail.GetRetryDelay().AsDuration(), 0), maxRetryAfter)
		}
	}
	return e
}

// contractError returns the error for a message that no server of the contract sends.
func contractError(problem string) *Error {
	return &Error{Code: codes.Internal, Message: "invalid response of the server: " + problem}
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: codes.InvalidArgument, Message: fmt.Sprintf(format, args...)}
}

func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, unicode.IsControl), " ")
}
