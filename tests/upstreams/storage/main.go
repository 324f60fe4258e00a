// The tests that kube-apiserver has for its watch cache (k8s.io/apiserver/pkg/storage/testing), over informerd: they write to etcd
// with the API server's own code, and read from the Kubernetes API of an informerd with that etcd as its source.
//
//	storage [TEST...]   all tests, or those whose names begin so; INFORMERD and INFORMERD_UPSTREAMS are the programs
//
// Each test has an etcd and an informerd of its own. All must pass, other than those in `exceptions`, which must fail.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// asTests is the environment variable with which the program runs the tests themselves.
const asTests = "INFORMERD_STORAGE_TESTS"

func main() {
	if os.Getenv(asTests) != "" {
		testing.Init()
		flag.Parse()
		testing.Main(func(pattern, name string) (bool, error) { return regexp.MatchString(pattern, name) }, tests, nil, nil)
		return
	}
	if err := compare(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// compare runs the tests in a process of their own, and compares those that fail with the exceptions.
func compare(wanted []string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	run := exec.Command(program, "-test.v", "-test.parallel=8", "-test.timeout=4m", "-test.run=^("+strings.Join(wanted, "|")+")")
	run.Env = append(os.Environ(), asTests+"=1")
	output, err := run.StdoutPipe()
	if err != nil {
		return err
	}
	run.Stderr = run.Stdout
	if err := run.Start(); err != nil {
		return err
	}
	results, err := results(output)
	if err != nil {
		return err
	}
	// Fails if a test does, and that is compared below.
	failed := run.Wait()
	passed, named, wrong := 0, 0, 0
	for name, result := range results {
		reason, excepted := exceptions[name]
		switch {
		case isParent(name, results):
		case result == "PASS" && excepted:
			wrong++
			fmt.Printf("%s passes: remove it from the exceptions\n", name)
		case result == "PASS":
			passed++
		case excepted:
			named++
			fmt.Printf("%s: %s\n", name, reason)
		case result == "SKIP":
			wrong++
			fmt.Printf("%s was skipped\n", name)
		default:
			wrong++
			fmt.Printf("%s failed\n", name)
		}
	}
	for name := range exceptions {
		if _, ran := results[name]; !ran && len(wanted) == 0 {
			wrong++
			fmt.Printf("%s did not run: remove it from the exceptions\n", name)
		}
	}
	fmt.Printf("%d passed, %d named with a reason, %d wrong\n", passed, named, wrong)
	if wrong > 0 || passed == 0 {
		return fmt.Errorf("the tests differ from the exceptions: %v", failed)
	}
	return nil
}

var result = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (.*) \([0-9.]+s\)$`)

// results reads the results, and prints everything else.
func results(output io.Reader) (map[string]string, error) {
	found, lines := map[string]string{}, bufio.NewScanner(output)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if match := result.FindStringSubmatch(lines.Text()); match != nil {
			found[match[2]] = match[1]
		}
		fmt.Println(lines.Text())
	}
	return found, lines.Err()
}

// isParent returns true for a test that consists of others.
func isParent(name string, results map[string]string) bool {
	for other := range results {
		if strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}
