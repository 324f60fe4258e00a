// The kubectl of the module that this file is copied into.
package main

import (
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	util.CheckErr(cmd.NewDefaultKubectlCommand().Execute())
}
