package main

// hostFlags are the flags of every command that serves a page or accepts changes.
type hostFlags struct {
	Allowed []string `name:"web.allowed-host" sep:"none" placeholder:"NAME" help:"Host name whose HTTP requests are served (repeatable). IP addresses, localhost and, for serve, the host of --web.external-url are always served. Requests for other names get 421, against DNS rebinding. Without the flag, names are checked only if all listen addresses are loopback. * allows all names."`
}
