package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	klog.SetLogger(logr.Discard())
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

// fixture is an etcd and an informerd over its keys.
type fixture struct {
	*facade
	client    *clientv3.Client
	recorder  *storagetesting.KubernetesRecorder
	directory string
	process   *exec.Cmd
}

// setup starts an etcd and an informerd.
func setup(t *testing.T, isCluster bool) *fixture {
	t.Helper()
	f := &fixture{facade: &facade{isCluster: isCluster, transformer: &switchable{}}}
	f.transformer.Transformer = storagetesting.NewPrefixTransformer(nil, false)
	// A socket's path has at most 107 bytes; that of a test may be longer.
	directory, err := os.MkdirTemp("", "storage")
	check(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(directory + "/log")
			t.Logf("%s", log)
		}
		os.RemoveAll(directory)
	})
	f.directory = directory
	endpoint := startEtcd(t, directory)
	client, err := kubernetes.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: time.Minute})
	check(t, err)
	t.Cleanup(func() { client.Close() })
	f.client = client.Client
	f.recorder = storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.Kubernetes = f.recorder
	codec, versioner := apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion), storage.APIObjectVersioner{}
	compactor := etcd3.NewCompactor(client.Client, 0, clock.RealClock{}, nil)
	t.Cleanup(compactor.Stop)
	// Leases of one second, as in the tests of etcd3: none waits longer.
	leases := etcd3.NewDefaultLeaseManagerConfig()
	leases.ReuseDurationSeconds = 1
	store, err := etcd3.New(client, compactor, codec,
		func() runtime.Object { return &example.Pod{} }, func() runtime.Object { return &example.PodList{} },
		"/registry", prefix, schema.GroupResource{Resource: "pods"}, f.transformer, leases,
		etcd3.NewDefaultDecoder(codec, versioner), versioner)
	check(t, err)
	t.Cleanup(store.Close)
	f.Interface = store

	kind := "example.apiserver.k8s.io/v1/pods=Pod"
	if isCluster {
		kind += "@cluster"
	}
	source := map[string]any{"etcd": map[string]any{"endpoints": []string{endpoint}, "prefix": "/registry" + prefix}}
	config, err := json.Marshal(map[string]any{
		"listen": "unix:" + directory + "/grpc", "admin": map[string]any{"listen": "none"},
		"kubernetes": map[string]any{"listen": "unix:" + f.socket()},
		"resources":  map[string]any{"pods": map[string]any{"kubernetes": kind, "source": source}},
	})
	check(t, err)
	check(t, os.WriteFile(directory+"/informerd.yaml", config, 0o600))
	f.facade.http = dial(f.socket())
	f.start(t)
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) socket() string { return f.directory + "/kubernetes" }

// start starts informerd, and waits until it serves.
func (f *fixture) start(t *testing.T) {
	t.Helper()
	f.process = exec.Command(os.Getenv("INFORMERD"), "serve", "--config", f.directory+"/informerd.yaml")
	log, err := os.Create(f.directory + "/log")
	check(t, err)
	defer log.Close()
	f.process.Stdout, f.process.Stderr = log, log
	check(t, f.process.Start())
	waitFor(t, func() error {
		response, err := f.facade.http.Get("http://localhost/readyz")
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("readyz: %s", response.Status)
		}
		return nil
	}, directoryLog(f.directory))
}

func (f *fixture) stop() {
	f.process.Process.Kill()
	f.process.Wait()
	f.facade.http.CloseIdleConnections()
}

// startEtcd starts an etcd, and returns its address.
func startEtcd(t *testing.T, directory string) string {
	client, peer := freeAddress(t), freeAddress(t)
	process := exec.Command(os.Getenv("INFORMERD_UPSTREAMS"), "serve", filepath.Join(directory, "etcd"), "m0",
		"http://"+client, "m0=http://"+peer)
	log, err := os.Create(directory + "/etcd.log")
	check(t, err)
	defer log.Close()
	process.Stdout, process.Stderr = log, log
	check(t, process.Start())
	t.Cleanup(func() {
		process.Process.Kill()
		process.Wait()
	})
	waitFor(t, func() error {
		connection, err := net.Dial("tcp", client)
		if err == nil {
			connection.Close()
		}
		return err
	}, directory+"/etcd.log")
	return "http://" + client
}

func directoryLog(directory string) string { return directory + "/log" }

// ports are below the range that Linux assigns by itself; another process begins at other ones.
var ports = func() *atomic.Int64 {
	first := &atomic.Int64{}
	first.Store(int64(os.Getpid() * 131))
	return first
}()

func freeAddress(t *testing.T) string {
	for range 10_000 {
		address := net.JoinHostPort("127.0.0.1", strconv.FormatInt(10_000+ports.Add(1)%10_000, 10))
		listener, err := net.Listen("tcp", address)
		if err == nil {
			listener.Close()
			return address
		}
	}
	t.Fatal("no port is free from 10000 on")
	return ""
}

// waitFor waits until there is no error; the log of the program says why it does not end.
func waitFor(t *testing.T, condition func() error, log string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log)
			t.Fatalf("%v\n%s", err, text)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// compact compacts etcd.
func (f *fixture) compact(ctx context.Context, t *testing.T, version string) {
	revision, err := storage.APIObjectVersioner{}.ParseResourceVersion(version)
	check(t, err)
	current, _, _, err := etcd3.Compact(ctx, f.client, 0, int64(revision))
	if err != nil {
		_, _, _, err = etcd3.Compact(ctx, f.client, current, int64(revision))
	}
	check(t, err)
	waitFor(t, func() error {
		if observed := f.CompactRevision(); observed != int64(revision) {
			return fmt.Errorf("the compaction that is observed is %d", observed)
		}
		return nil
	}, f.directory+"/etcd.log")
}

// forget compacts etcd, and begins the history of informerd again, which is not that of etcd: it lists what there is now.
func (f *fixture) forget(ctx context.Context, t *testing.T, version string) {
	f.compact(ctx, t, version)
	f.stop()
	f.start(t)
}

// increase increases etcd's revision.
func (f *fixture) increase(ctx context.Context, t *testing.T) int64 {
	response, err := f.client.Put(ctx, "increaseRV", "ok")
	check(t, err)
	return response.Header.Revision
}
