package bucket

import (
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startCloud starts a real server of an object store, built by test/peers/build.sh, and returns its address. args are the
// arguments for an address and a port.
func startCloud(t *testing.T, name string, env []string, args func(host, port string) []string) string {
	t.Helper()
	build := func(args ...string) string {
		out, err := exec.Command("../../test/peers/build.sh", append(args, name)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	path := build("-n")
	if path == "" && os.Getenv("FERULA_TEST_PEERS") != "" {
		if path = build(); path == "" {
			t.Fatalf("%s cannot be built", name)
		}
	}
	if path == "" {
		t.Skipf("%s is not built: make interop builds it", name)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args(host, port)...)
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return address
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// checkShipping checks that a block is shipped to a bucket and is there as it is on the disk.
func checkShipping(t *testing.T, config string) {
	t.Helper()
	to := mustOpen(t, config)
	dir := t.TempDir()
	id := makeBlock(t, dir, 0)
	mustSync(t, newShipper(t, to, dir, nil), 1)
	if got := trusted(t, to, dir); len(got) != 1 || got[0] != id {
		t.Errorf("shipped %s, the bucket has %v", id, got)
	}
}

func TestPeerAzurite_IsABucket(t *testing.T) {
	key := base64.StdEncoding.EncodeToString([]byte("key"))
	address := startCloud(t, "azurite", []string{"AZURITE_ACCOUNTS=account:" + key}, func(host, port string) []string {
		return []string{"--blobHost", host, "--blobPort", port, "--inMemoryPersistence", "--disableTelemetry", "--silent"}
	})
	config := func(container string) string {
		return fmt.Sprintf("type: AZURE\nconfig: {storage_account: account, container: %s, storage_connection_string: 'DefaultEndpointsProtocol=http;AccountName=account;AccountKey=%s;BlobEndpoint=http://%s/account;'}\nprefix: p\n", container, key, address)
	}
	checkCloud(t, config("one"), time.Time{})
	checkShipping(t, config("two"))
}
