package e2e

import (
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// azurite runs a server of Azure's blobs, and returns the object storage configuration of a container that does not exist
// yet.
func azurite(t *testing.T) string {
	t.Helper()
	path, port, key := peerBinary(t, "azurite"), fmt.Sprint(freePort(t)), base64.StdEncoding.EncodeToString([]byte("key"))
	cmd := exec.Command(path, "--blobHost", "127.0.0.1", "--blobPort", port, "--inMemoryPersistence", "--disableTelemetry", "--silent")
	cmd.Env = append(os.Environ(), "AZURITE_ACCOUNTS=account:"+key)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	eventually(t, 60*time.Second, "Azurite to listen", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	})
	return "type: AZURE\nconfig: {storage_account: account, container: blocks, storage_connection_string: 'DefaultEndpointsProtocol=http;AccountName=account;AccountKey=" +
		key + ";BlobEndpoint=http://127.0.0.1:" + port + "/account;'}\n"
}

func TestPeerThanosStore_SameSeriesOfBlocksInAzure(t *testing.T) {
	dir := t.TempDir()
	mint, maxt := writeSidecarBlocks(t, dir, 2)
	prom := startPrometheusForSidecar(t, dir)
	bucket := azurite(t)
	s := startSidecar(t, prom.base, func(o *app.SidecarOptions) { o.TSDBDir, o.Ship.Bucket = dir, bucket })
	eventually(t, 60*time.Second, "the blocks to be shipped", func() bool {
		_, body := s.get("/-/ready")
		return strings.Contains(body, "Shipping last succeeded")
	})
	request := storeapi.SeriesRequest{MinMS: mint, MaxMS: maxt, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "__name__", "blocks|own")}}
	want, err := storeSeries(s.client, request)
	if err != nil || len(want) < 40 {
		t.Fatal(len(want), err)
	}
	http, theirs := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	file := writeFile(t, filepath.Join(t.TempDir(), "objstore.yml"), bucket)
	startPeer(t, "http://"+http+"/-/ready", peerBinary(t, "thanos"), "store", "--data-dir="+t.TempDir(), "--objstore.config-file="+file, "--http-address="+http, "--grpc-address="+theirs, "--log.level=warn")
	for name, address := range map[string]string{"ferula": startStoreOver(t, bucket), "Thanos": theirs} {
		conn, client := storeClient(t, address)
		defer conn.Close()
		if got, err := storeSeries(client, request); err != nil || !slices.Equal(got, want) {
			t.Errorf("the store of %s returns %d series, %v, the sidecar %d\n%.300q\n%.300q", name, len(got), err, len(want), got, want)
		}
	}
}
