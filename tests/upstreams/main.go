// Upstreams for the tests of informerd: etcd 3.6 on loopback, its snapshots, and what writes to an etcd of any version.
//
//	upstreams serve DIR NAME CLIENT_URL CLUSTER   a member of NAME=PEER_URL,..., until SIGTERM
//	upstreams restore SNAPSHOT DIR PEER_URL       a data directory from a snapshot
//	upstreams drive CLIENT_URL [USER PASSWORD]    commands, one JSON object a line, from standard input
//
// A command of `drive` is answered by one line: {"revision":N}, or {"error":"..."}.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 5 && args[0] == "serve":
		return serve(args[1], args[2], args[3], args[4])
	case len(args) == 4 && args[0] == "restore":
		return restore(args[1], args[2], args[3])
	case (len(args) == 2 || len(args) == 4) && args[0] == "drive":
		return drive(args[1:])
	}
	return fmt.Errorf("usage: upstreams serve DIR NAME CLIENT_URL CLUSTER | restore SNAPSHOT DIR PEER_URL | drive CLIENT_URL [USER PASSWORD]")
}

// restoredName is that of the only member of what is restored.
const restoredName = "m0"

func serve(dir, name, clientURL, cluster string) error {
	client, err := url.Parse(clientURL)
	if err != nil {
		return err
	}
	members, err := types.NewURLsMap(cluster)
	if err != nil {
		return err
	}
	peers, ok := members[name]
	if !ok {
		return fmt.Errorf("%s is not in %s", name, cluster)
	}
	config := embed.NewConfig()
	config.Name = name
	config.Dir = dir
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = peers, peers
	config.InitialCluster = cluster
	config.LogLevel = "error"
	// What is lost when the machine loses power is of no interest here.
	config.UnsafeNoFsync = true
	// The bench of the start stores 1,000,000 objects.
	config.QuotaBackendBytes = 8 << 30
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer etcd.Close()
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-told:
		return nil
	case err := <-etcd.Err():
		return err
	}
}

func restore(path, dir, peerURL string) error {
	return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        path,
		Name:                restoredName,
		OutputDataDir:       dir,
		PeerURLs:            []string{peerURL},
		InitialCluster:      restoredName + "=" + peerURL,
		InitialClusterToken: embed.NewConfig().InitialClusterToken,
	})
}

// command is one of: a transaction of puts and deletions, a compaction, a snapshot into a file, authentication switched on.
type command struct {
	Put      map[string]string `json:"put"`
	Delete   []string          `json:"delete"`
	Compact  int64             `json:"compact"`
	Snapshot string            `json:"snapshot"`
	// A user who may read a prefix alone, next to root; both have this password.
	Reader *struct{ Name, Prefix, Password string } `json:"reader"`
}

func drive(args []string) error {
	config := clientv3.Config{Endpoints: args[:1], DialTimeout: 5 * time.Second, Logger: zap.NewNop()}
	if len(args) == 3 {
		config.Username, config.Password = args[1], args[2]
	}
	client, err := clientv3.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	answers := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var answer struct {
			Revision int64  `json:"revision,omitempty"`
			Error    string `json:"error,omitempty"`
		}
		var asked command
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			answer.Revision, err = asked.carryOut(client, args[0])
		}
		if err != nil {
			answer.Error = err.Error()
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (c command) carryOut(client *clientv3.Client, endpoint string) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	switch {
	case c.Compact > 0:
		answer, err := client.Compact(ctx, c.Compact)
		if err != nil {
			return 0, err
		}
		return answer.Header.Revision, nil
	case c.Snapshot != "":
		_, err := snapshot.NewV3(zap.NewNop()).Save(ctx, clientv3.Config{Endpoints: []string{endpoint}}, c.Snapshot)
		return 0, err
	case c.Reader != nil:
		return 0, c.protect(ctx, client)
	}
	var ops []clientv3.Op
	for key, value := range c.Put {
		ops = append(ops, clientv3.OpPut(key, value))
	}
	for _, key := range c.Delete {
		ops = append(ops, clientv3.OpDelete(key))
	}
	answer, err := client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}

func (c command) protect(ctx context.Context, client *clientv3.Client) error {
	reader := c.Reader
	steps := []func() error{
		func() error { _, err := client.UserAdd(ctx, "root", reader.Password); return err },
		func() error { _, err := client.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := client.RoleAdd(ctx, "reader"); return err },
		func() error {
			end := clientv3.GetPrefixRangeEnd(reader.Prefix)
			_, err := client.RoleGrantPermission(ctx, "reader", reader.Prefix, end, clientv3.PermissionType(clientv3.PermRead))
			return err
		},
		func() error { _, err := client.UserAdd(ctx, reader.Name, reader.Password); return err },
		func() error { _, err := client.UserGrantRole(ctx, reader.Name, "reader"); return err },
		func() error { _, err := client.AuthEnable(ctx); return err },
	}
	for _, step := range steps {
		// The role root is there already in some versions.
		if err := step(); err != nil && !strings.Contains(err.Error(), "already exists") {
			return err
		}
	}
	return nil
}
