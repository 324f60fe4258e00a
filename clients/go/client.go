// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"

	"informerd/clients/go/informerdv1"
)

// ClientOptions are credentials and timeouts. The zero value has the defaults, without credentials.
type ClientOptions struct {
	// TokenFile has a bearer token, and is read at each call: tokens of service accounts are renewed in place. A token is not
	// sent over a network in the clear: the target must use TLS, be a Unix socket, or be on this host.
	TokenFile string
	// CAFile has the PEM certificates that may have signed the server's; by default those that the system trusts. A target
	// without a scheme uses TLS if it is set.
	CAFile string
	// CertFile and KeyFile are the certificate of the client and its key, in PEM. They are read for each connection.
	CertFile, KeyFile string
	// ServerName is the name in the server's certificate; by default the host of the target.
	ServerName string
	// ConnectTimeout limits an attempt to connect; default 5 s.
	ConnectTimeout time.Duration
	// RequestTimeout is the deadline of calls whose context has none; Until has none. Default 30 s.
	RequestTimeout time.Duration
	// DialOptions are added to those of the client, for example interceptors.
	DialOptions []grpc.DialOption
}

// Client calls one server. Its calls share a connection, which reconnects when it breaks; each informer has its own.
type Client struct {
	target         target
	requestTimeout time.Duration
	dialOptions    []grpc.DialOption
	conn           *grpc.ClientConn
	service        informerdv1.InformerServiceClient
}

const (
	defaultConnectTimeout = 5 * time.Second
	defaultRequestTimeout = 30 * time.Second
	// Pings that go unanswered end a connection, also one without a call.
	keepaliveTime    = 15 * time.Second
	keepaliveTimeout = 10 * time.Second
	// The delays of gRPC between attempts to connect.
	minConnectBackoff = 200 * time.Millisecond
	maxConnectBackoff = 10 * time.Second
	maxMessageBytes   = 64 << 20
	capabilityShards  = "shards"
	capabilityViews   = "views"
	userAgent         = "informerd-go"
)

// NewClient returns a client of the server at a target: "127.0.0.1:50051", "http://HOST:PORT", "https://HOST:PORT",
// "unix:/path", or a name of gRPC such as "dns:///HOST:PORT". It connects with the first call.
//
// It fails if the target is invalid, if a file of the options cannot be read, and if a token would be sent in the clear.
func NewClient(address string, options ClientOptions) (*Client, error) {
	target, err := parseTarget(address, options)
	if err != nil {
		return nil, err
	}
	if options.ConnectTimeout < 0 || options.RequestTimeout < 0 {
		return nil, invalid("a timeout is negative")
	}
	c := &Client{target: target, requestTimeout: orDefault(options.RequestTimeout, defaultRequestTimeout)}
	c.dialOptions = slices.Concat([]grpc.DialOption{
		grpc.WithUserAgent(userAgent),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: minConnectBackoff, Multiplier: 2, Jitter: 0.2, MaxDelay: maxConnectBackoff,
			},
			MinConnectTimeout: orDefault(options.ConnectTimeout, defaultConnectTimeout),
		}),
	}, options.DialOptions)
	if c.conn, err = c.dial(); err != nil {
		return nil, err
	}
	c.service = informerdv1.NewInformerServiceClient(c.conn)
	return c, nil
}

// Close closes the connection of the calls. Informers go on: they have connections of their own.
func (c *Client) Close() error { return c.conn.Close() }

// Service returns the generated client, for calls and fields that this package does not have. It sets no deadline.
func (c *Client) Service() informerdv1.InformerServiceClient { return c.service }

// ListResources returns the resources of the server and the server's capabilities.
func (c *Client) ListResources(ctx context.Context) (*informerdv1.ListResourcesResponse, error) {
	ctx, cancel := c.withDeadline(ctx)
	defer cancel()
	response, err := c.service.ListResources(ctx, &informerdv1.ListResourcesRequest{})
	if err != nil {
		return nil, errorOf(ctx, err)
	}
	return response, nil
}

// dial returns another connection, which connects with its first call. It reads the files of the credentials.
func (c *Client) dial() (*grpc.ClientConn, error) {
	credentials, err := c.target.dialOptions()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(c.target.name, slices.Concat(credentials, c.dialOptions)...)
	if err != nil {
		return nil, invalid("invalid target %q: %v", c.target.name, err)
	}
	return conn, nil
}

func (c *Client) withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.requestTimeout)
}

// require fails unless the server has the capabilities that a request needs: one without them would ignore that part of the
// request. Each request checks, because an older server may have replaced this one.
func (c *Client) require(ctx context.Context, service informerdv1.InformerServiceClient, hasShard, hasView bool) error {
	if !hasShard && !hasView {
		return nil
	}
	resources, err := service.ListResources(ctx, &informerdv1.ListResourcesRequest{})
	if err != nil {
		return err
	}
	capabilities := resources.GetServer().GetCapabilities()
	missing := ""
	if hasView && !slices.Contains(capabilities, capabilityViews) {
		missing = capabilityViews
	}
	if hasShard && !slices.Contains(capabilities, capabilityShards) {
		missing = capabilityShards
	}
	if missing == "" {
		return nil
	}
	version := resources.GetServer().GetVersion()
	if version != "" {
		version = " (version " + version + ")"
	}
	return &Error{
		Code:    codes.Unimplemented,
		Reason:  "NOT_IMPLEMENTED",
		Message: fmt.Sprintf("informerd at %s%s has no %s: update it, or request without", c.target.name, version, missing),
	}
}

// orDefault returns the duration, or a default in place of 0.
func orDefault(d, byDefault time.Duration) time.Duration {
	if d == 0 {
		return byDefault
	}
	return min(d, math.MaxInt64/4)
}
