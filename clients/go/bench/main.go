// SPDX-License-Identifier: Apache-2.0

// Bench measures the client: events a second into the store, and the memory of 20,000 pods beside client-go's informer.
//
//	go run . events
//	INFORMERD=…/informerd go run . memory
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// modes are what a process of this program does; those after the first two are started by them.
var modes = map[string]func(arguments []string) error{
	"events":       events,
	"memory":       memory,
	"serve-events": serveEvents,
	"follow":       follow,
}

func main() {
	mode := func([]string) error { return fmt.Errorf("write `events` or `memory`") }
	if len(os.Args) > 1 && modes[os.Args[1]] != nil {
		mode = modes[os.Args[1]]
	}
	if err := mode(os.Args[min(2, len(os.Args)):]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// start starts this program in another mode; stop ends it.
func start(arguments ...string) (stop func(), err error) {
	return startProgram("/proc/self/exe", arguments...)
}

func startProgram(name string, arguments ...string) (stop func(), err error) {
	command := exec.Command(name, arguments...)
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		return nil, err
	}
	return func() {
		// The error is that it was killed.
		_ = command.Process.Kill()
		_ = command.Wait()
	}, nil
}

// output runs this program in another mode, and decodes what it prints.
func output(into any, arguments ...string) error {
	command := exec.Command("/proc/self/exe", arguments...)
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// temporary returns a path below a new directory, and the function that removes it.
func temporary(name string) (path string, remove func(), err error) {
	directory, err := os.MkdirTemp("", "informerd")
	return filepath.Join(directory, name), func() { _ = os.RemoveAll(directory) }, err
}

// awaitSocket waits until a server listens.
func awaitSocket(path string) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no server at %s within a minute", path)
}

// processorTime returns that of this process.
func processorTime() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, err
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
