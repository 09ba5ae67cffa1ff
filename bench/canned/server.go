package canned

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// Served is one range query that the server responded to.
type Served struct {
	Query          string
	StartMS, EndMS int64
	Encoding       string // of the response; empty is plain
}

// Server is a downstream that serves canned bytes. Close must be called.
type Server struct {
	URL string

	responses []*Response
	plain     bool // compress nothing, whatever Accept-Encoding the request has
	http      *http.Server
	done      chan struct{}

	mu     sync.Mutex
	served []Served
	faults []string
}

// Serve starts a server of these responses on a free loopback port. If plain is true, it compresses nothing.
func Serve(plain bool, responses ...*Response) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + l.Addr().String(), responses: responses, plain: plain, done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("/-/ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/api/v1/query_range", s.queryRange)
	s.http = &http.Server{Handler: mux}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l) // ends with ErrServerClosed
	}()
	return s, nil
}

// Close shuts the server down and waits for it.
func (s *Server) Close() error {
	err := s.http.Close()
	<-s.done
	return err
}

// Take returns the queries served since the last call. An unknown query since then is an error.
func (s *Server) Take() ([]Served, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	served, faults := s.served, s.faults
	s.served, s.faults = nil, nil
	if len(faults) > 0 {
		return served, fmt.Errorf("the downstream received unknown queries: %s", strings.Join(faults, "; "))
	}
	return served, nil
}

// queryRange serves the part with the requested range.
func (s *Server) queryRange(w http.ResponseWriter, r *http.Request) {
	part, query, err := s.find(r)
	if err != nil {
		s.mu.Lock()
		s.faults = append(s.faults, err.Error())
		s.mu.Unlock()
		http.Error(w, fmt.Sprintf(`{"status":"error","errorType":"bad_data","error":%q}`, err), http.StatusBadRequest)
		return
	}
	served := Served{Query: query, StartMS: part.StartMS, EndMS: part.EndMS}
	body := part.Plain
	w.Header().Set("Content-Type", "application/json")
	if part.Gzip != nil && !s.plain && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		served.Encoding, body = "gzip", part.Gzip
		w.Header().Set("Content-Encoding", "gzip")
	}
	s.mu.Lock()
	s.served = append(s.served, served)
	s.mu.Unlock()
	_, _ = w.Write(body) // fails if the client has disconnected
}

var errUnknown = errors.New("unknown query")

func (s *Server) find(r *http.Request) (Part, string, error) {
	query := r.FormValue("query")
	var ms [3]int64
	for i, name := range []string{"start", "end", "step"} {
		v, err := strconv.ParseFloat(r.FormValue(name), 64)
		if err != nil {
			return Part{}, "", fmt.Errorf("%s: %w", name, err)
		}
		ms[i] = int64(math.Round(v * 1000))
	}
	for _, a := range s.responses {
		if a.Query != query || a.StepMS != ms[2] {
			continue
		}
		for _, p := range a.Parts() {
			if p.StartMS == ms[0] && ms[1] >= p.EndMS && ms[1] < p.EndMS+a.StepMS {
				return p, query, nil
			}
		}
	}
	return Part{}, "", fmt.Errorf("%w: %s from %d to %d by %d ms", errUnknown, query, ms[0], ms[1], ms[2])
}
