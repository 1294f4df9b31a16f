package shim

import "strings"

// commandLine is what the wrapper needs to know of the low-level runtime's arguments.
type commandLine struct {
	command   string
	bundle    string
	log       string
	logFormat string
	debug     bool
}

// withValue are the options of runc and crun that take their value from the next argument, before and after the command.
var withValue = map[string]bool{
	"log": true, "log-format": true, "log-level": true, "root": true, "rootless": true, "criu": true, "cgroup-manager": true,
	"bundle": true, "b": true, "console-socket": true, "pid-file": true, "pidfd-socket": true, "preserve-fds": true,
	"config": true, "f": true,
}

// parse reads arguments as runc and crun do: options, a command, its options and the container's name.
func parse(arguments []string) commandLine {
	line := commandLine{bundle: "."}
	for index := 0; index < len(arguments); index++ {
		argument := arguments[index]
		if !strings.HasPrefix(argument, "-") || argument == "-" {
			if line.command == "" {
				line.command = argument
			}
			continue
		}
		if argument == "--" {
			break
		}
		name, value, attached := strings.Cut(strings.TrimLeft(argument, "-"), "=")
		if !attached && withValue[name] && index+1 < len(arguments) {
			index++
			value = arguments[index]
		}
		line.set(name, value)
	}
	return line
}

func (c *commandLine) set(name, value string) {
	inCommand := c.command != ""
	switch {
	case inCommand && (name == "bundle" || name == "b"):
		c.bundle = value
	case !inCommand && name == "log":
		c.log = value
	case !inCommand && name == "log-format":
		c.logFormat = value
	case !inCommand && name == "debug":
		c.debug = value == "" || value == "true"
	}
}
