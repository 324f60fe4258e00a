// The informers of kube/informers.go with the client-go of the folders beside this file, each of which has the go.mod of one version.
package main

import "os"

func main() {
	watchConfigMaps(os.Args[1])
}
