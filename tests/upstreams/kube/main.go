// The API server of Kubernetes and its kubectl, as they are, in one program: an upstream for the tests of informerd, on an etcd
// of the folder above, and its first client; and the work queue of client-go, which the tests compare with,
// and its informers.
package main

import (
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	// What follows the program's name is the command line of the real one.
	name := ""
	if len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	switch name {
	case "kube-apiserver":
		os.Exit(cli.Run(app.NewAPIServerCommand()))
	case "kubectl":
		util.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
	case "work-queue":
		workQueue()
	case "informers":
		watchConfigMaps(os.Args[1])
	default:
		fmt.Fprintln(os.Stderr, "kube-apiserver or kubectl, and its arguments, work-queue, or informers and an address")
		os.Exit(2)
	}
}
