// The suite of controller-runtime's cache, in place of its `cache_suite_test.go`: writes go to the API server, as there, and reads to
// informerd. KUBECONFIG names the former, INFORMERD_ADDRESS the latter.
package cache_test

import (
	"net/http"
	"net/url"
	"os"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func TestSource(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Cache Suite")
}

var cfg *rest.Config

// reads sends each read to informerd.
type reads struct {
	address *url.URL
	writes  http.RoundTripper
}

func (r reads) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		return r.writes.RoundTrip(request)
	}
	request = request.Clone(request.Context())
	request.URL.Scheme, request.URL.Host, request.Host = r.address.Scheme, r.address.Host, ""
	return http.DefaultTransport.RoundTrip(request)
}

var _ = BeforeSuite(func() {
	logf.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	address, err := url.Parse(os.Getenv("INFORMERD_ADDRESS"))
	Expect(err).NotTo(HaveOccurred())
	cfg, err = clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	Expect(err).NotTo(HaveOccurred())
	cfg.QPS, cfg.Burst = 1000, 1000
	cfg.Wrap(func(writes http.RoundTripper) http.RoundTripper { return reads{address, writes} })
})
