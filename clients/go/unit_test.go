// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	pb "informerd/clients/go/informerdv1"
)

func TestVersionsCompareWithinOneLineage(t *testing.T) {
	for _, test := range []struct {
		a, b  string
		order int
		ok    bool
	}{
		{"9", "10", -1, true},
		{"10", "9", 1, true},
		{"010", "10", 0, true},
		{"99999999999999999999998", "99999999999999999999999", -1, true},
		{"x.9", "x.10", -1, true},
		{"x.1", "y.1", 0, false},
		{"x.1", "1", 0, false},
		{"", "1", 0, false},
		{"x.", "x.1", 0, false},
		{".1", ".1", 0, false},
		{"1e3", "1", 0, false},
	} {
		if order, ok := compareVersions(test.a, test.b); order != test.order || ok != test.ok {
			t.Errorf("%q and %q: %d, %v", test.a, test.b, order, ok)
		}
	}
}

// The timer that ends a silent stream may be late; the state is not.
func TestSilenceIsComputedWhenTheStateIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(3 * interval)
		expect := func(state State) {
			t.Helper()
			if is := h.freshness().State; is != state {
				t.Fatalf("%v, expected %v", is, state)
			}
		}
		expect(StateDisconnected)
		h.start()
		expect(StateSyncing)
		time.Sleep(interval)
		h.opened()
		h.received(bookmark("1").Bookmark)
		h.caughtUp()
		time.Sleep(3*interval - 1)
		expect(StateLive)
		time.Sleep(1)
		expect(StateDisconnected)
		if age := h.freshness().LastMessageAge; age != 3*interval {
			t.Fatal(age)
		}
		h.received(nil)
		expect(StateLive)
	})
}

func TestTargets(t *testing.T) {
	for address, expected := range map[string]string{
		"127.0.0.1:50051":        "127.0.0.1:50051 false",
		"http://informerd:50051": "informerd:50051 false",
		"https://informerd:1/":   "informerd:1 true",
		"[::1]:1":                "[::1]:1 false",
		"unix:/run/a.sock":       "unix:/run/a.sock false",
		"unix:///run/a.sock":     "unix:///run/a.sock false",
		"dns:///informerd:50051": "dns:///informerd:50051 false",
	} {
		target, err := parseTarget(address, ClientOptions{})
		if is := fmt.Sprint(target.name, " ", target.usesTLS); err != nil || is != expected {
			t.Errorf("%s: %s, %v", address, is, err)
		}
	}
	for address, problem := range map[string]string{
		"":                        "missing port",
		"informerd":               "missing port",
		":50051":                  "host is missing",
		"informerd:":              "port is missing",
		"informerd:0":             "port is missing",
		"::1:50051":               "too many colons",
		"http://informerd:1/pods": "port is missing",
	} {
		_, err := parseTarget(address, ClientOptions{})
		if err == nil || !strings.Contains(err.Error(), problem) || !strings.Contains(err.Error(), "examples: ") {
			t.Errorf("%q: %v", address, err)
		}
	}
	if _, err := NewClient("http://informerd:1", ClientOptions{CAFile: "ca.pem"}); err == nil {
		t.Error("a CA without TLS")
	}
	if _, err := NewClient("https://informerd:1", ClientOptions{CertFile: "cert.pem"}); err == nil {
		t.Error("a certificate without a key")
	}
	if _, err := NewClient("informerd:1", ClientOptions{CAFile: "/does/not/exist"}); err == nil {
		t.Error("a CA that cannot be read")
	}
}

func TestATokenIsNotSentInTheClear(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("canary\n")
	for address, isAllowed := range map[string]bool{
		"https://informerd:1": true, "unix:/a.sock": true, "127.9.9.9:1": true, "localhost:1": true, "[::1]:1": true,
		"informerd:1": false, "10.0.0.1:1": false, "dns:///informerd:1": false, "localhost.example:1": false,
	} {
		client, err := NewClient(address, ClientOptions{TokenFile: path})
		if (err == nil) != isAllowed {
			t.Errorf("%s: %v", address, err)
		}
		if err == nil {
			client.Close()
		}
	}
	for _, text := range []string{"", " \n", strings.Repeat("x", maxTokenBytes+1), "canary\nx", "canäry"} {
		write(text)
		_, err := NewClient("127.0.0.1:1", ClientOptions{TokenFile: path})
		if err == nil || strings.Contains(err.Error(), "can") && !strings.Contains(err.Error(), "cannot") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := NewClient("127.0.0.1:1", ClientOptions{TokenFile: path + "x"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestErrorsHaveTheReasonOfTheServer(t *testing.T) {
	err := errorOf(t.Context(), failure(codes.NotFound, "OBJECT_NOT_FOUND", time.Hour).Err())
	if err.Error() != "scripted (NOT_FOUND / OBJECT_NOT_FOUND)" || err.RetryAfter != time.Minute || status.Code(err) != codes.NotFound {
		t.Errorf("%v %v", err, err.RetryAfter)
	}
	err = errorOf(t.Context(), status.Error(codes.Unavailable, "two\nlines"))
	if err.Error() != "two lines (UNAVAILABLE)" {
		t.Errorf("%v", err)
	}
}

func TestRecovery(t *testing.T) {
	for _, test := range []struct {
		code                  codes.Code
		reason                string
		hasSynced, hasRetried bool
		expected              recovery
	}{
		{code: codes.OK, expected: resume},
		{code: codes.Unavailable, expected: resume},
		{code: codes.Internal, expected: resume},
		{code: codes.Unknown, expected: resume},
		{code: codes.Aborted, expected: resume},
		{code: codes.Canceled, expected: resume},
		{code: codes.DeadlineExceeded, expected: resume},
		{code: codes.ResourceExhausted, reason: "SLOW_CONSUMER", expected: resume},
		{code: codes.ResourceExhausted, expected: resume},
		{code: codes.OutOfRange, reason: "RESOURCE_VERSION_EXPIRED", expected: listAgain},
		{code: codes.OutOfRange, reason: "HISTORY_CHANGED", expected: listAgain},
		{code: codes.OutOfRange, reason: "ACCESS_CHANGED", expected: listAgain},
		{code: codes.OutOfRange, expected: listAgain},
		{code: codes.OutOfRange, reason: "A_NEW_REASON", expected: listAgain},
		{code: codes.Unauthenticated, expected: resume},
		{code: codes.Unauthenticated, hasRetried: true, expected: giveUp},
		{code: codes.NotFound, expected: giveUp},
		{code: codes.NotFound, hasSynced: true, expected: resume},
		{code: codes.PermissionDenied, hasSynced: true, expected: giveUp},
		{code: codes.InvalidArgument, hasSynced: true, expected: giveUp},
		{code: codes.FailedPrecondition, expected: giveUp},
		{code: codes.Unimplemented, expected: giveUp},
		{code: codes.AlreadyExists, expected: giveUp},
		{code: codes.DataLoss, expected: giveUp},
	} {
		if is := recoveryOf(&Error{Code: test.code, Reason: test.reason}, test.hasSynced, test.hasRetried); is != test.expected {
			t.Errorf("%+v: %v", test, is)
		}
	}
}

func TestBodiesAreDecoded(t *testing.T) {
	type body struct {
		N int `json:"n"`
	}
	o, err := newObject[body](thing("a", "u1", "1", `{"n":7}`), nil)
	if err != nil || o.Body.N != 7 || o.DecodeError != nil || o.Key() != "a" {
		t.Errorf("%+v %v", o, err)
	}
	// Integers above 2^53 stay exact.
	exact, err := newObject[any](thing("a", "u1", "1", `{"n":9007199254740993}`), nil)
	if err != nil || fmt.Sprint(exact.Body) != "map[n:9007199254740993]" {
		t.Errorf("%+v %v", exact, err)
	}
	for _, text := range []string{`{"n":"x"}`, `{"n":7} x`, `{`, ``} {
		o, err = newObject[body](thing("a", "u1", "1", text), nil)
		if err != nil || o.Body.N != 0 || o.DecodeError == nil {
			t.Errorf("%s: %+v %v", text, o, err)
		}
	}
	octets := thing("a", "u1", "1", `{"n":7}`)
	for mediaType, isDecoded := range map[string]bool{
		"": true, "application/json": true, "application/json; charset=utf-8": true, "application/merge-patch+json": true,
		"application/octet-stream": false, "text/plain": false,
	} {
		octets.MediaType = mediaType
		if o, err = newObject[body](octets, nil); err != nil || (o.DecodeError == nil) != isDecoded {
			t.Errorf("%s: %+v %v", mediaType, o, err)
		}
		bytes, err := newObject[[]byte](octets, nil)
		if err != nil || string(bytes.Body) != `{"n":7}` || bytes.DecodeError != nil {
			t.Errorf("%s: %+v %v", mediaType, bytes, err)
		}
	}
	// What is equal is shared, and is not decoded again.
	old, _ := newObject[json.RawMessage](thing("a", "u1", "1", `1`), nil)
	renewed, _ := newObject(thing("a", "u1", "2", `1`), old)
	if &old.Body[0] != &renewed.Body[0] || renewed.ResourceVersion != "2" || !renewed.isSame(old) {
		t.Errorf("%+v", renewed)
	}
}

func TestShards(t *testing.T) {
	shards := make([]ShardRange, 3)
	for i := range shards {
		shards[i] = ShardOf("uid", i, 3).Ranges[0]
	}
	third := uint64(0x5555555555555555)
	if shards[0] != (ShardRange{0, third}) || shards[1] != (ShardRange{third, 2 * third}) || shards[2] != (ShardRange{2 * third, 0}) {
		t.Errorf("%v", shards)
	}
	defer func() {
		if recover() == nil {
			t.Error("there is no shard 3 of 3")
		}
	}()
	ShardOf("uid", 3, 3)
}

func TestKeysWithSlashes(t *testing.T) {
	c := newCache[any](func(error) {})
	c.apply(&step[any]{isList: true, version: "1", list: map[objectKey]*Object[any]{
		{"n", "a"}:    {Namespace: "n", Name: "a"},
		{"", "x/y/z"}: {Name: "x/y/z"},
	}})
	for _, key := range []string{"n/a", "x/y/z"} {
		if o, exists := c.GetByKey(key); !exists || o.Key() != key {
			t.Errorf("%q: %v", key, o)
		}
	}
	if _, exists := c.GetByKey("a"); exists {
		t.Error("a has a namespace")
	}
}

func TestPlainCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScriptedServer(t)
		var request any
		var left time.Duration
		var answers []any
		server.unary = func(ctx context.Context, r any) (any, error) {
			request = r
			deadline, has := ctx.Deadline()
			if left = 0; has {
				left = time.Until(deadline)
			}
			answer := answers[0]
			answers = answers[1:]
			if err, isError := answer.(error); isError {
				return nil, err
			}
			return answer, nil
		}
		things := NewResource[int](server.client(ClientOptions{RequestTimeout: time.Minute}), "things")
		list := ListOptions{Selection: Selection{Name: `a,=\`, FieldSelector: "x=1"}, MinResourceVersion: "7"}

		answers = []any{[]*pb.ListResponse{
			{ResourceVersion: "9", Objects: []*pb.Object{thing("a", "u1", "1", "1")}, Source: pb.SyncState_SYNC_STATE_STALE},
			{ResourceVersion: "9", Objects: []*pb.Object{thing("b", "u2", "2", "2")}},
		}}
		listed, err := things.List(t.Context(), list)
		if err != nil || len(listed.Objects) != 2 || listed.Objects[1].Body != 2 || listed.ResourceVersion != "9" || !listed.Stale {
			t.Errorf("%+v %v", listed, err)
		}
		if left != time.Minute {
			t.Errorf("deadline in %v", left)
		}
		r := request.(*pb.ListRequest)
		if r.FieldSelector != `x=1,metadata.name=a\,\=\\` || r.MinResourceVersion != "7" || r.Format != pb.PayloadFormat_PAYLOAD_FORMAT_RAW {
			t.Errorf("%v", r)
		}

		answers = []any{[]*pb.ListResponse{{ResourceVersion: "9"}, {ResourceVersion: "10"}}, []*pb.ListResponse{}}
		for range 2 {
			if _, err := things.List(t.Context(), ListOptions{}); err == nil {
				t.Error("an invalid answer is accepted")
			}
		}

		answers = []any{&pb.ByIndexResponse{ResourceVersion: "9", Objects: []*pb.Object{thing("a", "u1", "1", "1")}}}
		listed, err = things.ByIndex(t.Context(), "app", "web", ListOptions{})
		if err != nil || len(listed.Objects) != 1 || request.(*pb.ByIndexRequest).Value != "web" {
			t.Errorf("%+v %v", listed, err)
		}

		answers = []any{&pb.GetResponse{ResourceVersion: "9", Object: thing("a", "u1", "1", "1")}, failure(codes.NotFound, "OBJECT_NOT_FOUND", 0).Err()}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got, err := things.Get(ctx, "", "a", GetOptions{})
		if err != nil || got.Object.Body != 1 || left != time.Second {
			t.Errorf("%+v %v %v", got, err, left)
		}
		var failed *Error
		if _, err = things.Get(ctx, "", "a", GetOptions{}); !errors.As(err, &failed) || failed.Reason != "OBJECT_NOT_FOUND" {
			t.Errorf("%v", err)
		}

		server.unary = func(ctx context.Context, _ any) (any, error) { <-ctx.Done(); return nil, ctx.Err() }
		if _, err = things.List(ctx, ListOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}

		synctest.Wait()
		server.unary = func(context.Context, any) (any, error) {
			server := &pb.ServerInfo{Version: "0.1.0"}
			return &pb.ListResourcesResponse{Resources: []*pb.Resource{{Name: "things"}}, Server: server}, nil
		}
		if resources, err := things.client.ListResources(t.Context()); err != nil || resources.Resources[0].Name != "things" {
			t.Errorf("%v %v", resources, err)
		}
		missing := fmt.Sprintf("informerd at %s (version 0.1.0) has no views: update it, or request without", things.client.target.name)
		_, err = things.List(t.Context(), ListOptions{View: &View{Name: "@no-status"}})
		if !errors.As(err, &failed) || failed.Code != codes.Unimplemented || failed.Message != missing {
			t.Errorf("%v", err)
		}
	})
}

// TestTLS has a server that requires a certificate of the client.
func TestTLS(t *testing.T) {
	directory := t.TempDir()
	file := func(name string) string { return filepath.Join(directory, name) }
	now := time.Now()
	template := func(serial int64) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: fmt.Sprint(serial)},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true,
		}
	}
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authority := template(1)
	authority.IsCA, authority.KeyUsage = true, x509.KeyUsageCertSign
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string, certificate *x509.Certificate, key *ecdsa.PrivateKey) {
		der, err := x509.CreateCertificate(rand.Reader, certificate, authority, &key.PublicKey, authorityKey)
		if err != nil {
			t.Fatal(err)
		}
		write(name+".pem", "CERTIFICATE", der)
		keyDER, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(name+"-key.pem", "EC PRIVATE KEY", keyDER)
	}
	issue("ca", authority, authorityKey)
	for name, serial := range map[string]int64{"server": 2, "client": 3} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		certificate := template(serial)
		certificate.DNSNames = []string{"informerd.example"}
		certificate.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		issue(name, certificate, key)
	}

	serverTarget := target{usesTLS: true, caFile: file("ca.pem"), certFile: file("server.pem"), keyFile: file("server-key.pem")}
	config, err := serverTarget.tlsConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.ClientCAs, config.ClientAuth = config.RootCAs, tls.RequireAndVerifyClientCert
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &scriptedServer{t: t, unary: func(context.Context, any) (any, error) { return &pb.ListResourcesResponse{}, nil }}
	server.grpc = grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	pb.RegisterInformerServiceServer(server.grpc, server)
	go func() {
		if err := server.grpc.Serve(listener); err != nil {
			t.Error(err)
		}
	}()
	defer server.grpc.Stop()

	call := func(options ClientOptions) error {
		client, err := NewClient("https://"+listener.Addr().String(), options)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		_, err = client.ListResources(t.Context())
		return err
	}
	complete := ClientOptions{
		CAFile: file("ca.pem"), CertFile: file("client.pem"), KeyFile: file("client-key.pem"), ServerName: "informerd.example",
	}
	if err := call(complete); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*ClientOptions){
		"no certificate of the client": func(o *ClientOptions) { o.CertFile, o.KeyFile = "", "" },
		"no CA":                        func(o *ClientOptions) { o.CAFile = "" },
		"another name":                 func(o *ClientOptions) { o.ServerName = "other.example" },
	} {
		options := complete
		change(&options)
		if err := call(options); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheREADMEHasTheProgramAndItIsShort(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("example/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```go\n"+string(program)+"```\n") {
		t.Error("the README has another program than example/main.go")
	}
	if lines := strings.Count(string(program), "\n"); lines >= 30 {
		t.Errorf("the program has %d lines", lines)
	}
}
