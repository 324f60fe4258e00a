// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// target is a server and the credentials for it.
type target struct {
	// name is what gRPC calls the server.
	name       string
	usesTLS    bool
	tokenFile  string
	caFile     string
	certFile   string
	keyFile    string
	serverName string
}

// tokenFile is a file with a bearer token.
type tokenFile string

// maxTokenBytes is the size of the largest token.
const maxTokenBytes = 8 << 10

func parseTarget(address string, options ClientOptions) (target, error) {
	t := target{
		name:       address,
		tokenFile:  options.TokenFile,
		caFile:     options.CAFile,
		certFile:   options.CertFile,
		keyFile:    options.KeyFile,
		serverName: options.ServerName,
	}
	problem := func(problem string) (target, error) {
		return target{}, invalid("invalid target %q: %s; examples: 127.0.0.1:50051, https://informerd.example:50051, unix:/run/informerd.sock", address, problem)
	}
	hasTLSOptions := t.caFile != "" || t.certFile != "" || t.keyFile != "" || t.serverName != ""
	isPrivate := false
	switch scheme, rest, hasScheme := strings.Cut(address, "://"); {
	case strings.HasPrefix(address, "unix:") || strings.HasPrefix(address, "unix-abstract:"):
		isPrivate = true
		if hasTLSOptions {
			return problem("a Unix socket has no TLS")
		}
	case hasScheme && scheme != "http" && scheme != "https":
		// A name of gRPC: dns:///informerd:50051.
		t.usesTLS = hasTLSOptions
	default:
		if !hasScheme {
			rest = address
		}
		t.name = strings.TrimSuffix(rest, "/")
		t.usesTLS = scheme == "https" && hasScheme || hasTLSOptions
		if hasScheme && scheme == "http" && hasTLSOptions {
			return problem("http has no TLS; write https")
		}
		host, port, err := net.SplitHostPort(t.name)
		switch {
		case err != nil:
			return problem(strings.TrimPrefix(err.Error(), "address "+t.name+": "))
		case host == "":
			return problem("host is missing")
		case port == "" || port == "0" || strings.ContainsAny(port, "/?#@"):
			return problem("port is missing")
		}
		ip, err := netip.ParseAddr(host)
		isPrivate = host == "localhost" || err == nil && ip.Unmap().IsLoopback()
	}
	if (t.certFile == "") != (t.keyFile == "") {
		return target{}, invalid("CertFile and KeyFile belong together")
	}
	if t.tokenFile != "" {
		if !t.usesTLS && !isPrivate {
			return target{}, invalid("the token for %q would be sent in the clear; use https", address)
		}
		if _, err := tokenFile(t.tokenFile).read(); err != nil {
			return target{}, &Error{Code: codes.InvalidArgument, Message: err.Error(), cause: err}
		}
	}
	return t, nil
}

// dialOptions reads the files of the credentials, except the token.
func (t *target) dialOptions() ([]grpc.DialOption, error) {
	transport := insecure.NewCredentials()
	if t.usesTLS {
		config, err := t.tlsConfig()
		if err != nil {
			return nil, err
		}
		transport = credentials.NewTLS(config)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	if t.tokenFile != "" {
		options = append(options, grpc.WithPerRPCCredentials(tokenFile(t.tokenFile)))
	}
	return options, nil
}

func (t *target) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.serverName}
	if t.caFile != "" {
		pem, err := os.ReadFile(t.caFile)
		if err != nil {
			return nil, invalid("cannot read the CA file: %v", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, invalid("CA file %s has no PEM certificate", t.caFile)
		}
	}
	if t.certFile != "" {
		pair, err := tls.LoadX509KeyPair(t.certFile, t.keyFile)
		if err != nil {
			return nil, invalid("cannot load the client certificate: %v", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// GetRequestMetadata reads the token. A file that cannot be read now, because it is being replaced, is a temporary failure.
func (f tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := f.read()
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity returns false: [parseTarget] refuses a token that would be sent in the clear.
func (f tokenFile) RequireTransportSecurity() bool { return false }

func (f tokenFile) read() (string, error) {
	file, err := os.Open(string(f))
	if err != nil {
		return "", fmt.Errorf("cannot read the token file: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxTokenBytes+1))
	if err != nil {
		return "", fmt.Errorf("cannot read the token file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	switch {
	case token == "":
		return "", fmt.Errorf("token file %s is empty", string(f))
	case len(text) > maxTokenBytes:
		return "", fmt.Errorf("token file %s has more than %d bytes", string(f), maxTokenBytes)
	case strings.ContainsFunc(token, func(r rune) bool { return r < ' ' || r > '~' }):
		return "", fmt.Errorf("token file %s has characters that no header may have", string(f))
	}
	return token, nil
}
