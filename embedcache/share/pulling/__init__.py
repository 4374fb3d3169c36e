"""What a pull needs: its plan, whole and in part, and files on their way into a cache."""
