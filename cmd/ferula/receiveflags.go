package main

import (
	"fmt"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/reqbody"
)

// receiveFlags are the flags of serve about pushed samples and profiles.
type receiveFlags struct {
	RemoteWrite bool     `name:"web.enable-remote-write-receiver" default:"true" negatable:""`
	Messages    []string `name:"web.remote-write-receiver.accepted-protobuf-messages" sep:"none" placeholder:"NAME"`
	Profiles    bool     `name:"profiles.enable-receiver" default:"true" negatable:""`
	BodiesSize  size     `name:"receive.max-bytes-in-flight" min:"64MB" default:"256MB"`
	BodyTimeout duration `name:"receive.body-timeout" min:"1s" default:"15s"`
}

// check returns an error if --receive.max-bytes-in-flight is less than the largest body
// that other flags allow. Such a body would never get enough memory: its request would always get
// 503 after a wait.
func (f receiveFlags) check(profiles profileFlags) error {
	const overhead = 2 << 20 // an upload's bytes around its profiles, and the last chunk
	for _, c := range []struct {
		name  string
		bytes size
	}{{"profiles.max-request-size", profiles.BodySize}, {"profiles.limit.profile-size", 2 * profiles.Profile}} {
		if f.Profiles && f.BodiesSize < c.bytes+overhead {
			return fmt.Errorf("--receive.max-bytes-in-flight=%s is too small for one body of --%s: must be at least %s",
				f.BodiesSize, c.name, c.bytes+overhead)
		}
	}
	return nil
}

func (f receiveFlags) options(readTimeout time.Duration) app.ReceiveOptions {
	return app.ReceiveOptions{
		RemoteWriteOff: !f.RemoteWrite, ProfilesOff: !f.Profiles,
		Bodies: reqbody.Options{BytesMax: int64(f.BodiesSize), Grace: time.Duration(f.BodyTimeout), Total: readTimeout,
			Flags: hint.Flags{
				"BytesMax": "--receive.max-bytes-in-flight", "Grace": "--receive.body-timeout",
			}},
	}
}
