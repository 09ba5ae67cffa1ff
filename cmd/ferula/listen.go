package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// checkListen returns an error if no server can listen on the address of a flag. A host name is not looked up, and
// whether the address is free shows only when the server listens on it: both may be different at the next start, so
// they are no errors of the command line. An empty address, such as that of an unset variable, is one: net.Listen takes
// any free port of all addresses for it.
func checkListen(flag, address string) error {
	if address == "" {
		return fmt.Errorf("--%s= must not be empty: it is the address to listen on, host:port", flag)
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		err = checkHost(host)
	}
	if err == nil {
		// as net.Listen does: a number, the name of a service, or nothing for any free port
		_, err = net.LookupPort("tcp", port)
	}
	if err == nil {
		return nil
	}
	reason := err.Error()
	if wrong := (*net.AddrError)(nil); errors.As(err, &wrong) {
		reason = wrong.Err // the line has the address already
	} else if unknown := (*net.DNSError)(nil); errors.As(err, &unknown) {
		reason = unknown.Err
	}
	return fmt.Errorf("--%s=%s: not host:port: %s", flag, address, reason)
}

// checkGRPC checks the gRPC address of a command that has no StoreAPI if the address is empty.
func checkGRPC(address string) error {
	if address == "" {
		return nil
	}
	return checkListen("grpc-address", address)
}

// checkHost returns an error if host is neither an IP address nor possible as a name.
func checkHost(host string) error {
	if _, err := netip.ParseAddr(host); host == "" || err == nil {
		return nil
	}
	name := strings.TrimSuffix(host, ".")
	invalid := len(name) > 253 || strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r == 0x7f || strings.ContainsRune("/:@%[]?#", r)
	})
	numeric := true
	labels := strings.Split(name, ".")
	for _, label := range labels {
		invalid = invalid || label == "" || len(label) > 63
		numeric = numeric && strings.Trim(label, "0123456789") == ""
	}
	if invalid || numeric && len(labels) == 4 {
		return fmt.Errorf("invalid host %q", host)
	}
	return nil
}
