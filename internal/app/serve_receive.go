package app

import (
	"net/http"

	promscrape "github.com/prometheus/prometheus/scrape"

	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/ingest/remotesend"
	"github.com/ferula-io/ferula/internal/ingest/remotewrite"
)

// ReceiveOptions configure the receivers of `ferula serve`.
type ReceiveOptions struct {
	RemoteWriteOff bool             // disable the remote write receiver
	ProfilesOff    bool             // disable the profile receivers
	Bodies         httpbody.Options // shared by all receivers
}

// remoteWrite returns the remote write receiver or, if it is disabled, a handler that
// responds with status 404.
func (s *Serve) remoteWrite(guard func(http.Handler) http.Handler) http.Handler {
	if s.opts.Receive.RemoteWriteOff {
		return switchedOff("remote write", "--web.enable-remote-write-receiver")
	}
	opts := s.opts.Write
	opts.Bodies, opts.Refusal = s.bodies, s.refusal
	return guard(remotewrite.NewHandler(opts, s.sender.Samples(), s.opts.Logger.With("component", "remote write"), s.reg))
}

// newSender returns the sender of the remote_write sections.
func (s *Serve) newSender() *remotesend.Sender {
	opts := s.opts.Send
	opts.TypeAndUnitLabels = s.opts.Scrape.TypeAndUnitLabels
	opts.Scraper = func() *promscrape.Manager {
		if s.scraper == nil {
			return nil
		}
		return s.scraper.Manager.MetadataManager()
	}
	return remotesend.New(opts, s.store, s.opts.Logger.With("component", "remote write sender"), s.reg, s.reg.Own)
}

// switchedOff returns the handler of a disabled receiver. It responds with status 404,
// as Prometheus does.
func switchedOff(what, flag string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the "+what+" receiver is off: enable it with "+flag, http.StatusNotFound)
	})
}
