// Package main is the pause program: it holds a pod's namespaces, reaps children and waits for the end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop, child := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	signal.Notify(child, syscall.SIGCHLD)
	for {
		select {
		case <-child:
			for {
				if pid, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 {
					break
				}
			}
		case <-stop:
			return
		}
	}
}
