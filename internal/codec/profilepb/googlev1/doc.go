// Package googlev1 is pprof's own profile message, generated, for answers that carry a profile as a message. Profiles that
// are stored or pushed never come here: they are bytes, read by codec/pprof.
package googlev1
