// Package googlev1 is pprof's own profile message, generated. It is used for responses in
// JSON only: stored and pushed profiles are decoded by codec/pprof.
package googlev1
