#!/bin/bash
# Prints its environment, a variable a line, prefixed with its global rank.
env | while read -r line; do echo "env rank=$RANK $line"; done
