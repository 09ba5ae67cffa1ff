package ingest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/inflate"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// Tenant returns the tenant of a request.
type Tenant func(http.Header) (string, error)

// uploadsMax is the maximum of uploads that are decoded concurrently; further ones wait.
const uploadsMax = 16

type upload struct {
	name        string
	from, until time.Time
	rate        uint64 // samples per second
	spy, units  string
	format      string

	profile, previous []byte
	labels            []byte // of the samples of a flight recording
	config            map[string]profilepb.SampleTypeConfig
	limits            *Limits // of the tenant
}

// Handler returns the handler of POST /ingest, which older SDKs use. bodies is shared with
// other receivers; nil: a new one.
func (in *Ingester) Handler(tenantOf Tenant, bodies *httpbody.Reader) http.Handler {
	bodies = cmp.Or(bodies, httpbody.NewReader(httpbody.Options{}))
	slots := make(chan struct{}, uploadsMax)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tenant, err := tenantOf(r.Header)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := in.receive(w, r, tenant, bodies, slots); err != nil {
			httpbody.Prepare(w, r, err)
			http.Error(w, err.Error(), StatusOf(err))
		}
	})
}

// receive reads the body, then takes a slot and pushes the upload.
func (in *Ingester) receive(w http.ResponseWriter, r *http.Request, tenant string, bodies *httpbody.Reader,
	slots chan struct{}) error {
	contentType := r.Header.Get("Content-Type")
	u, err := in.parse(r.URL.RawQuery, contentType)
	if err != nil {
		return in.discard(err)
	}
	u.limits = in.limitsOf(tenant)
	body, err := bodies.Read(w, r, int64(u.limits.ProfileBytes)*2+(1<<20)) // a profile and the previous one
	if errors.Is(err, httpbody.ErrTooLarge) {
		err = fmt.Errorf("%w%s", err, u.limits.Flags.Of("ProfileBytes"))
	}
	if err == nil {
		defer body.Release()
		err = bodies.TakeSlot(r.Context(), slots)
	}
	if err != nil {
		return in.discard(err)
	}
	defer func() { <-slots }()
	var all []profilepb.RawProfile
	if err = u.read(body, contentType); err == nil {
		all, err = in.convert(u)
	}
	if err != nil || len(all) == 0 { // a recording without samples has no profiles
		return in.discard(err)
	}
	return in.Push(r.Context(), tenant, all)
}

// discard counts a request that was not pushed, unless err is nil. Push counts the profiles that it rejects.
func (in *Ingester) discard(err error) error {
	if err != nil {
		in.discarded.With(reasonOf(err)).Inc()
	}
	return err
}

// StatusOf returns the HTTP status of an error of Push or of the receiver.
func StatusOf(err error) int {
	switch {
	case errors.Is(err, httpbody.ErrTooLarge), errors.Is(err, httpbody.ErrBusy), errors.Is(err, httpbody.ErrSlow),
		errors.Is(err, httpbody.ErrUnread):
		return httpbody.Status(err)
	case errors.Is(err, profiles.ErrBadRequest), errors.Is(err, pprof.ErrCorrupt), errors.Is(err, pprof.ErrLimit):
		return http.StatusBadRequest
	case errors.Is(err, profiles.ErrLimit):
		return http.StatusTooManyRequests
	case errors.Is(err, profiles.ErrUnavailable):
		return http.StatusServiceUnavailable
	case errors.Is(err, errUnsupported):
		return http.StatusUnsupportedMediaType
	}
	return http.StatusInternalServerError
}

var errUnsupported = errors.New("encoding not supported")

func (in *Ingester) convert(u *upload) ([]profilepb.RawProfile, error) {
	app, lset, err := parseName(u.name)
	if err != nil {
		return nil, err
	}
	if u.format == "jfr" {
		lset = slices.DeleteFunc(lset, func(l profilepb.RawLabel) bool { return l.Name == profiles.LabelName })
		return recordingProfiles(u, withDefault(lset, profiles.LabelService, app))
	}
	raw, name, service, err := in.pprofOf(u, app)
	lset = withDefault(withDefault(lset, profiles.LabelName, name), profiles.LabelService, service)
	return []profilepb.RawProfile{{Labels: lset, Raw: raw, TimeNS: u.from.UnixNano()}}, err
}

// withDefault adds a label unless the labels have it with a value.
func withDefault(lset []profilepb.RawLabel, name, value string) []profilepb.RawLabel {
	if slices.ContainsFunc(lset, func(l profilepb.RawLabel) bool { return l.Name == name && l.Value != "" }) {
		return lset
	}
	return append(lset, profilepb.RawLabel{Name: name, Value: value})
}

func (in *Ingester) parse(query, contentType string) (*upload, error) {
	form, err := url.ParseQuery(query)
	if err != nil {
		return nil, badRequest("query: %v", err)
	}
	now := in.now()
	u := &upload{name: form.Get("name"), spy: form.Get("spyName"), units: form.Get("units"), format: form.Get("format"),
		from: now, until: now, rate: 100}
	if u.name == "" {
		return nil, badRequest("name is missing")
	}
	for key, at := range map[string]*time.Time{"from": &u.from, "until": &u.until} {
		if text := form.Get(key); text != "" {
			if *at, err = profilepb.ParseTimestamp(text, now); err != nil {
				return nil, badRequest("%s: %v", key, err)
			}
		}
	}
	if u.until.Before(u.from) {
		return nil, badRequest("until is before from")
	}
	if text := form.Get("sampleRate"); text != "" && text != "0" {
		if u.rate, err = strconv.ParseUint(text, 10, 32); err != nil || u.rate == 0 || u.rate > 1e9 {
			return nil, badRequest("sampleRate %.100q is not between 1 and 1000000000", text)
		}
	}
	if media, _, err := mime.ParseMediaType(contentType); err == nil && u.format == "" {
		u.format = formatOf[media]
	}
	switch u.format {
	case "", "groups", "folded", "lines", "pprof", "jfr":
		return u, nil
	case "trie", "tree", "speedscope":
		return nil, fmt.Errorf("%w: format %s: send pprof, jfr, or folded stacks as groups or lines", errUnsupported,
			u.format)
	}
	return nil, badRequest("format %.100q is unknown", u.format)
}

// formatOf maps the Content-Type of requests without the parameter format to a format.
var formatOf = map[string]string{"multipart/form-data": "pprof", "binary/octet-stream+trie": "trie",
	"binary/octet-stream+tree": "tree"}

// read parses the body. The upload references it and is valid until the body's Release.
func (u *upload) read(body *httpbody.Body, contentType string) error {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil || media != "multipart/form-data" {
		u.profile = body.Bytes()
		return nil
	}
	parts := multipart.NewReader(body.NewReader(), params["boundary"])
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return bodyError(err)
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return bodyError(err)
		}
		switch part.FormName() {
		case "profile", "jfr":
			u.profile = content
		case "labels":
			u.labels = content
		case "prev_profile":
			u.previous = content
		case "sample_type_config":
			if u.config, err = profilepb.ParseSampleTypes(content); err != nil {
				return badRequest("%v", err)
			}
		}
	}
	if u.profile == nil {
		return badRequest("the form has no field named profile or jfr")
	}
	return nil
}

func bodyError(err error) error { return badRequest("body: %v", err) }

// pprofOf returns the upload as a pprof, the name of the profile (__name__), and the name of the
// service. The service is app, for folded stacks without the suffix of the type.
func (in *Ingester) pprofOf(u *upload, app string) (raw []byte, name, service string, err error) {
	if u.format != "pprof" {
		if err := u.inflateText(); err != nil {
			return nil, "", "", err
		}
		if !isPprof(u.profile) {
			return u.foldedPprof(app)
		}
	}
	decoded := in.decoded.Get().(*pprof.Profile)
	defer in.decoded.Put(decoded)
	if err := decoded.Decode(u.profile, u.limits.decode()); err != nil {
		return nil, "", "", err
	}
	var types []string
	for _, t := range decoded.SampleTypes {
		types = append(types, string(decoded.Text(t.Type)))
	}
	raw = u.profile
	switch {
	case u.previous != nil:
		// profiles/pprof enforces the limits before package google/pprof decodes both profiles.
		if err := decoded.Decode(u.previous, u.limits.decode()); err != nil {
			return nil, "", "", err
		}
		raw, err = in.uploadDelta(u)
	case u.spy == "rbspy" || u.spy == "pyspy":
		raw, err = decoded.AppendRenamed(nil, func(dst []byte, f *pprof.Function) []byte {
			return appendNameWithFile(dst, u.spy, decoded.Text(f.Name), decoded.Text(f.File))
		})
	}
	return raw, profileName(types, u.config, u.units), app, err
}

// appendNameWithFile appends the new name of a function of Ruby or Python: its file, a space and its
// name, as in Pyroscope. Flame graphs merge functions of the same name, and many classes have
// methods of the same name. It appends nothing if the name must not change: newer SDKs for Python
// send absolute paths, and names that contain the module.
func appendNameWithFile(dst []byte, spy string, name, file []byte) []byte {
	if len(file) == 0 || spy == "pyspy" && file[0] == '/' {
		return dst
	}
	return append(append(append(dst, file...), ' '), name...)
}

// foldedPprof converts folded stacks to a pprof. It returns the same values as pprofOf.
func (u *upload) foldedPprof(app string) (raw []byte, name, service string, err error) {
	t, service := foldedTypeOf(app, u.units)
	folded := newFolded(t, u.rate, u.from, u.until)
	if err = folded.read(u.profile, u.format != "lines"); err != nil {
		return nil, "", "", err
	}
	return folded.encoder.Append(nil), t.name, service, nil
}

// inflateText decompresses a body with gzip if the request declares a text format. Without a declared
// format a body with gzip is a pprof, which is decompressed later.
func (u *upload) inflateText() error {
	if u.format == "" || !bytes.HasPrefix(u.profile, []byte(gzipMagic)) {
		return nil
	}
	text, err := gunzip(u.profile, u.limits.DecompressedBytes, func() error {
		return limitError("profile_size", "more than %d bytes when decompressed%s", u.limits.DecompressedBytes,
			u.limits.Flags.Of("DecompressedBytes"))
	})
	if err == nil {
		u.profile = text
	}
	return err
}

// gunzip decompresses gzip of at most limit bytes. tooLarge returns the error of more bytes.
func gunzip(b []byte, limit int, tooLarge func() error) ([]byte, error) {
	out, err := new(inflate.Inflater).Gzip(nil, b, limit)
	switch {
	case errors.Is(err, inflate.ErrGzipLimit):
		return nil, tooLarge()
	case err != nil:
		return nil, badRequest("gzip: %v", err)
	}
	return out, nil
}

const gzipMagic = "\x1F\x8B"

// isPprof detects a pprof without a declared format: it begins with the gzip magic or with
// a sample type field.
func isPprof(body []byte) bool {
	return bytes.HasPrefix(body, []byte(gzipMagic)) || bytes.HasPrefix(body, []byte{0x0A, 0x04, 0x08})
}
