module informerd.dev/tests/upstreams/kubectl

go 1.26.0

require k8s.io/kubectl v0.30.14
