package main

// hostFlags are the flags of every command that serves a page or accepts changes.
type hostFlags struct {
	Allowed []string `name:"web.allowed-host" sep:"none" placeholder:"NAME"`
}
