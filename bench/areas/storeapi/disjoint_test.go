package storeapi

import (
	"io"
	"net"
	"testing"
	"time"
)

func TestDelay_PassesOnEverythingLater(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.CopyN(c, c, 1<<20) // an echo
	}()
	d, err := newDelay(l.Addr().String(), storeDelay)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", d.address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begun := time.Now()
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, 1<<20))
		sent <- err
	}()
	if _, err := io.ReadFull(c, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < storeDelay {
		t.Errorf("an echo took %v, less than the delay", took)
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
}
